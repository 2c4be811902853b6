"""A device without learning as a process: ``-m tests.support.console.device_child PORT NAME SITE``.

It sends an update for every offer, and a version that it is to try stays on trial until the process ends.
"""

import asyncio
import sys

from tests.e2e.test_rollout_fleet import Trier


async def live(port: int, name: str, site: str) -> None:
    async with Trier(port, name, {}, site=site):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(live(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
