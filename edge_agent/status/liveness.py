"""Whether this agent is alive; feeds systemd's watchdog.

An agent may be idle for days: silent sensors, no broker, no task. Then there is no progress, and no fault. It
is alive while the event loop runs, a thread is available, the disk answers, and no started work (a message,
cutting windows, reading the knowledge graph) hangs. Work with a time limit of its own (training, downloads,
the link) is not checked.
"""

import asyncio

from edge_agent.ports import OtherTasks
from protocol.errors import LichenError
from runtime.process.daemon import Progress
from runtime.storage.spool import Spool


async def hang_reason(
    progress: Progress, spool: Spool, patience_s: float, *, others: OtherTasks | None = None
) -> str:
    """The work that hangs longer than ``patience_s``; empty: none does.

    It does not return while the disk or all threads hang; the caller limits its time.
    """
    if hanging := progress.hanging(patience_s) or (others.hanging(patience_s) if others else ""):
        return hanging
    try:
        await asyncio.to_thread(spool.pending)
    except (OSError, LichenError):  # a disk that refuses still answers
        return ""
    return ""
