"""Threads of a simulation that wait in the middle of their work, and the locks between them.

Each is a thread of the system, but only one runs at any moment, and the simulation says which: what a thread
waits for (a lock, the database, ``time.sleep``) takes virtual time. So transactions of several processes
interleave, in every order, and in the same order with the same seed.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, Final, Protocol, Self
from unittest.mock import patch

from lichen_lab.simulation.deterministic.machine.process_life import PowerCut, ProcessLife

_RUNNING: Final[dict[int, "SimThread"]] = {}
"""Thread of the system -> the one that it runs."""
_IDLE: Final[list["_Carrier"]] = []
"""Threads of the system without work: each costs more to start than to hand over to."""


class ThreadLoop(Protocol):
    """What a thread needs of the event loop."""

    def time(self) -> float:
        """Virtual seconds."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context) -> object:
        """Run a callback at a virtual time."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass while nothing runs."""

    def is_frozen(self, life: ProcessLife) -> bool:
        """Whether a process is stopped."""


class _Carrier:
    """A thread of the system that runs one piece of work after the other."""

    def __init__(self) -> None:
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] = _nothing
        threading.Thread(target=self._run, name="simulated", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            self._work()
            self._work = _nothing
            _RUNNING.pop(threading.get_ident(), None)
            self._back.release()

    def give(self, work: Callable[[], None]) -> None:
        """The next piece of work; it begins with :meth:`enter`."""
        self._work = work

    def enter(self) -> None:
        """Let it run until it leaves or ends."""
        self._go.release()
        self._back.acquire()

    def leave(self) -> None:
        """In the thread: let the simulation go on, until it enters again."""
        self._back.release()
        self._go.acquire()


def _nothing() -> None:
    """No work."""


class SimThread:
    """A thread of a life: runs a function, and may wait in virtual time.

    Args:
        loop: the world's.
        life: it ends with it.
        work: what it does.
    """

    def __init__(self, loop: ThreadLoop, life: ProcessLife, work: Callable[[], None]) -> None:
        self.loop = loop
        self.life = life
        self._owner: Callable[[], object] | None = None
        self._context = copy_context()
        self._work = work
        self._done = self._killed = False
        self._failed: BaseException | None = None
        self._wait, self._until = 0, 0.0
        self._carrier = _IDLE.pop() if _IDLE else _Carrier()

    def start(self) -> None:
        """Begin; returns when it waits for the first time, or has ended."""
        self._carrier.give(self._main)
        self.life.threads.append(self)
        self._enter()

    def _main(self) -> None:
        _RUNNING[threading.get_ident()] = self
        try:
            self._context.run(self._work)
        except PowerCut:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the simulation's own thread
            self._failed = error
        self._done = True

    def _enter(self) -> None:
        self._wait += 1  # a later wake-up for what is over now does nothing
        self._carrier.enter()
        if self._done:
            self.life.threads.remove(self)
            _IDLE.append(self._carrier)
            if self._failed is not None:
                raise self._failed

    def _wake(self, wait: int) -> None:
        if wait == self._wait and not self._done:
            self._enter()

    def wake_at(self, when: float) -> None:
        """Go on at a virtual time, unless something else lets it go on earlier."""
        self._until = max(self._until, when)
        self.loop.call_at(when, self._wake, self._wait, context=self._context.copy())

    def wait(self, owner: Callable[[], object] | None = None) -> None:
        """In the thread: wait until :meth:`wake_at` or :meth:`wake_now`.

        Args:
            owner: the thread that has the lock which this one waits for, if it waits for one.

        Raises:
            PowerCut: the life is over.
        """
        self._owner = owner
        if not self._killed:
            self._carrier.leave()
        self._owner = None
        if self._killed:
            raise PowerCut(f"{self.life.node}, life {self.life.number}: a thread")

    def sleep(self, seconds: float) -> None:
        """In the thread: wait for virtual seconds."""
        self.wake_at(self.loop.time() + max(seconds, 0.0))
        self.wait()

    def wake_now(self) -> None:
        """Let it go on as soon as the loop comes to it."""
        self.wake_at(self.loop.time())

    def hurry(self) -> None:
        """From the loop, which cannot wait: let it, or the thread that it waits for, go on at once.

        Time passes for the whole world, if it waits for a time.
        """
        owner = None if self._owner is None else self._owner()
        if isinstance(owner, SimThread) and owner is not self and not self.loop.is_frozen(owner.life):
            owner.hurry()
            return
        self.loop.pass_time(max(0.0, self._until - self.loop.time()))
        self._enter()

    def kill(self) -> None:
        """The life is over: end it."""
        self._killed = True
        while not self._done:
            self._enter()


def running_thread() -> SimThread | None:
    """The thread that runs now; None: the event loop's."""
    return _RUNNING.get(threading.get_ident())


def kill_threads(life: ProcessLife) -> None:
    """End all threads of a life that is over."""
    for thread in list(life.threads):
        thread.kill()


class SimLock:
    """A lock between simulated threads: ``threading.Lock``, or ``threading.RLock`` if ``again``."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._depth = 0
        self.owner: object = None
        self._waiters: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as threading's
        """Take it; waits in virtual time."""
        me = running_thread() or _RUNNING
        while self.owner is not None and not (self._again and self.owner is me):
            if not blocking:
                return False
            self._await_release(me)
        del timeout  # nobody holds one for ever
        self.owner, self._depth = me, self._depth + 1
        return True

    def _await_release(self, me: object) -> None:
        if isinstance(me, SimThread):
            self._waiters.append(me)
            me.wait(lambda: self.owner)
        elif isinstance(self.owner, SimThread):
            self.owner.hurry()
        else:
            raise RuntimeError("the event loop waits for a lock that it holds")  # noqa: TRY004 - a state, no type

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if self._depth == 0:
            self.owner = None
            waiters, self._waiters = self._waiters, deque()
            for one in waiters:
                one.wake_now()

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self.owner is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def simulated_locks() -> Iterator[None]:
    """Let the locks that the coordinator's modules make be those of simulated threads."""
    shim = SimpleNamespace(Lock=lambda: SimLock(again=False), RLock=lambda: SimLock(again=True))
    with ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("coordinator.") and getattr(module, "threading", None) is threading:
                stack.enter_context(patch.object(module, "threading", shim))
        yield
