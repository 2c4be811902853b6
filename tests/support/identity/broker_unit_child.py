"""The coordinator's identity as in its unit: ``python -m tests.support.identity.broker_unit_child CONFIG``.

Runs the service that writes the broker's files, without the calls that the unit filters. Each line on
standard input is a device to revoke; the reply is a line of JSON with the service's log, and whether it has
died.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import structlog

from coordinator.config.coordinator import load_settings
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.http_api.service import EnrolmentServer
from runtime.clock import SystemClock
from tests.support.processes.unit_filter import take_calls_away


async def main(config: Path) -> None:
    """Until the input ends."""
    said: list[dict[str, object]] = []
    structlog.configure(
        processors=[lambda _, __, event: said.append(dict(event)) or str(event)],
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    settings = load_settings(config)
    with EnrolmentAuthority(settings) as desk:
        office = EnrolmentServer(desk, settings.identity, SystemClock())
        keeping = asyncio.create_task(office.keep())
        while line := await asyncio.to_thread(sys.stdin.readline):
            desk.book.revoke(line.strip(), unknown=True)
            before = len(said)
            office._wake.set()
            while len(said) == before and not keeping.done():  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.01)
            died = repr(keeping.exception()) if keeping.done() else ""
            sys.stdout.write(json.dumps({"died": died, "said": said[before:]}, default=str) + "\n")
            sys.stdout.flush()
        keeping.cancel()
        await asyncio.wait([keeping])
        office.close()


if __name__ == "__main__":
    os.umask(0o077)
    take_calls_away()
    asyncio.run(main(Path(sys.argv[1])))
