"""A daemon that does what its first argument says; for the tests of runtime.process.daemon."""

import asyncio
import sys
import time

from protocol.errors import Misconfigured
from runtime.process.daemon import Finished, run, supervise


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def good() -> None:
    try:
        say("running")
        await asyncio.sleep(600)
    finally:
        say("ended")


async def bad(what: str) -> None:
    await asyncio.sleep(0.05)
    say("at work")
    if what == "misconfigured":
        raise Misconfigured("agent.toml: mqtt.host: wrong")
    if what == "crash":
        raise ZeroDivisionError("boom")
    if what == "finished":
        raise Finished("all rounds are done")
    if what == "stubborn":
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                say("no")
    if what == "thread":
        await asyncio.to_thread(time.sleep, 600)


async def goodbye(what: str) -> None:
    say("goodbye begins")
    await asyncio.sleep(600 if what == "slow-goodbye" else 0)
    say("goodbye")


async def main() -> int:
    what = sys.argv[1]
    if what == "early":
        raise Misconfigured("before anything ran")
    services = {"good": good, "bad": lambda: bad(what)}
    return await supervise(services, on_stop=lambda: goodbye(what), stop_timeout_s=1.0)


if __name__ == "__main__":
    sys.exit(run(main, exit_grace_s=0.5))
