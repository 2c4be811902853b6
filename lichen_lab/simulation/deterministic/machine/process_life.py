"""One life of a simulated process: from its start to its death.

A life is known to the tasks and threads of its process through :data:`LIFE`; ``asyncio.to_thread`` and new
tasks hand it on. At every *moment* (a disk operation, a commit, the begin and the end of a thread's work, a
message sent) the process can be made to die.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class PowerCut(BaseException):
    """The process ends here. Not an ``Exception``: nothing under test may catch it."""


class LifeThread(Protocol):
    """A thread of a process."""

    def kill(self) -> None:
        """The life is over: end it."""


class ProcessLife:
    """See the module.

    Args:
        node: its name, as ``agent-2``.
        number: which life of that node.
        crash_at: the moment, counted from 1, at which it dies; 0 is never. May be set later.
        power: it dies of a power cut (un-synced writes may be lost, no socket is closed), else of SIGKILL.
            May be set until it dies.
        interleaves: its threads wait in the middle of their work.
    """

    def __init__(
        self,
        node: str,
        number: int = 1,
        *,
        crash_at: int = 0,
        power: bool = True,
        interleaves: bool = False,
    ) -> None:
        self.node = node
        self.number = number
        self.crash_at = crash_at
        self.power = power
        """Whether its death is, or was, a power cut."""
        self.interleaves = interleaves
        self.threads: list[LifeThread] = []
        """Threads at work, of a life that interleaves."""
        self.moments = 0
        self.dead = False
        self.died_of = ""
        self.signals: dict[int, Callable[[], object]] = {}
        """Handlers that the process set, by number of the signal."""
        self.on_end: list[Callable[[str], None]] = []
        """Called once, in order, at the instant of death: freeze the disk, cut the link, cancel the tasks."""

    def moment(self, what: str) -> None:
        """Count a moment at which a power cut could come.

        Raises:
            PowerCut: it comes.
        """
        if self.dead:
            return
        self.moments += 1
        if self.moments == self.crash_at:
            self.end(what)
            raise PowerCut(f"{self.node}, life {self.number}: {what}")

    def end(self, what: str, *, power: bool | None = None) -> None:
        """Die now. Nothing that runs later in this life has an effect. Idempotent.

        Args:
            what: of what, for the trace.
            power: overrules :attr:`power`.
        """
        if self.dead:
            return
        self.power = self.power if power is None else power
        self.dead, self.died_of = True, what
        for call in self.on_end:
            call(what)

    def signal(self, number: int) -> bool:
        """Deliver a signal (SIGTERM asks for an orderly stop); False if it has no handler."""
        handler = None if self.dead else self.signals.get(number)
        if handler is not None:
            handler()
        return handler is not None

    def cancel_at_end(self, task: "asyncio.Task[object]") -> None:
        """Cancel the process's first task, in the loop's next turn, when this life ends."""

        def cancel(_: str) -> None:
            task.get_loop().call_soon(task.cancel)

        self.on_end.append(cancel)


LIFE: Final[ContextVar[ProcessLife | None]] = ContextVar("lichen_life", default=None)
"""The life whose code runs now; None: the simulation's own code."""
