"""Is this agent alive? What systemd's watchdog is fed by.

An agent may be idle for days: sensors that are silent, no broker, no task. Then nothing is achieved, and all
is well. It is alive while the event loop turns, a thread is to be had, the disk answers, and nothing that was
begun (a message, the cutting of windows, a look at the knowledge graph) hangs. What has time limits of its
own (training, downloads, the link) is not asked.
"""

import asyncio

from protocol.errors import LichenError
from runtime.process.daemon import Progress
from runtime.storage.spool import Spool


async def hang_reason(progress: Progress, spool: Spool, patience_s: float) -> str:
    """Words for what hangs longer than ``patience_s``; empty: all is well.

    It does not return while the disk or all threads hang; the caller bounds it.
    """
    if hanging := progress.hanging(patience_s):
        return hanging
    try:
        await asyncio.to_thread(spool.pending)
    except (OSError, LichenError):  # a disk that says no answers
        return ""
    return ""
