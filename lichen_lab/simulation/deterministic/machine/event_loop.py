"""An event loop with virtual time: nothing sleeps, and a seed decides the order of threads.

When nothing is ready to run, time jumps to the next timer. ``run_in_executor`` (so ``asyncio.to_thread``)
runs the function inline, at once or after a seeded virtual delay: every interleaving that it could have with
the event loop can come about, and each comes about again with the same seed.
"""

import asyncio
import heapq
import math
import random
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Final, SupportsIndex, TypeVar

from lichen_lab.simulation.deterministic.machine.handles import Call, SimTask, tell, where_waits
from lichen_lab.simulation.deterministic.machine.patched_time import virtual_time
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, PowerCut, ProcessLife
from lichen_lab.simulation.deterministic.machine.threads import SimThread, running_thread

T = TypeVar("T")
_THREAD_S: Final = 0.004
"""Longest work of a thread, in virtual seconds."""

_TURNS: Final = 1000
_TICK_S: Final = 1e-6
"""So many turns without a jump take time."""


class Stuck(AssertionError):  # noqa: N818 - reads as what happened
    """The simulation does not end: nothing can happen any more, or too much did."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module. Make it with :func:`run`.

    Args:
        seed: decides the length of threads' work.
        max_virtual_s: a longer world is :class:`Stuck`.
        max_steps: so is one with more callbacks.
    """

    def __init__(
        self, seed: int | str = 0, *, max_virtual_s: float = 100_000.0, max_steps: int = 20_000_000
    ) -> None:
        super().__init__()
        self._now = 0.0
        self._ready: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = self._tasks_made = 0
        self._random = random.Random(f"loop {seed}")  # noqa: S311 - a seed, not a secret
        self._max_virtual_s = max_virtual_s
        self._max_steps = max_steps
        self._stopping = False
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._frozen: dict[ProcessLife, list[Call]] = {}
        self.steps = 0
        """Callbacks that ran."""
        self.jumps = 0
        """Number of time jumps."""
        self.threads = 0
        """Functions that ran as in a thread."""
        self.on_quiet: Callable[[], None] | None = None
        """Called whenever nothing is ready to run, before time moves: look at the world here."""
        self.faults: list[BaseException] = []
        """Uncaught errors of callbacks; :func:`run` raises the first."""
        self.set_exception_handler(self._keep_fault)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def pass_time(self, seconds: float | SupportsIndex) -> None:
        """Let time pass while nothing runs: the loop is blocked; in a thread that can wait, it alone."""
        thread = running_thread()
        if thread is None:
            self._now += float(seconds)
        else:
            thread.sleep(float(seconds))

    def freeze(self, life: ProcessLife) -> None:
        """Run nothing of a process (SIGSTOP), until :meth:`thaw`."""
        self._frozen.setdefault(life, [])

    def is_frozen(self, life: ProcessLife) -> bool:
        """Whether a process is stopped."""
        return life in self._frozen

    def thaw(self, life: ProcessLife) -> None:
        """Let a process go on (SIGCONT), with all that became ready meanwhile."""
        self._ready.extend(self._frozen.pop(life, ()))

    def call_soon(  # type: ignore[override] # the handle is asyncio's, made leaner
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        """Run a callback now, after those that are ready."""
        call = Call(callback, args, context, 0.0)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment] # there is one thread

    def call_at(  # type: ignore[override] # see call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        """Run a callback at a virtual time; those of one time run in the order of their calls."""
        call = Call(callback, args, context, when)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, call))
        return call

    def call_later(  # type: ignore[override] # see call_soon
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        """Run a callback after virtual seconds; time moves even by a delay that is lost in its last bit."""
        when = self._now + delay
        if delay > 0.0 and when == self._now:
            when = math.nextafter(when, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def create_task(  # type: ignore[override] # typeshed's TypeVar is private
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        """A task; those without a name get one that is the same in each run."""
        self._check_closed()  # type: ignore[attr-defined] # of BaseEventLoop
        self._tasks_made += 1
        number, life = self._tasks_made, LIFE.get() if context is None else context.get(LIFE)
        task = SimTask(number, life, coro, loop=self, name=name or f"task-{number:06}", context=context)
        self._tasks.append(weakref.ref(task))
        return task

    def live_tasks(self) -> "list[asyncio.Task[Any]]":
        """Unfinished tasks, in the order of their creation; ``asyncio.all_tasks`` is slow."""
        live = [task for known in self._tasks if (task := known()) is not None and not task.done()]
        self._tasks = [weakref.ref(task) for task in live]
        return live

    def _run_once(self) -> None:
        ready, turns = self._ready, 0
        while not self._stopping:
            turns += 1
            if not ready:
                self._jump()
                turns = 0
            elif turns > _TURNS:  # code that waits for less than a clock tells apart would wait for ever
                self._now, turns = self._now + _TICK_S, 0
            self.steps += len(ready)
            for _ in range(len(ready)):
                call = ready.popleft()
                if self._frozen and self._is_kept(call):
                    continue
                if not call._cancelled:  # noqa: SLF001 - our own class
                    try:
                        call._context.run(call._callback, *call._args)  # noqa: SLF001 - our own class
                    except PowerCut:
                        continue  # its life is over; the other lives go on
                    except BaseException as error:
                        self.faults.append(error)
                        raise
            if self.steps > self._max_steps:
                raise Stuck(f"more than {self._max_steps} steps at {self._now:.1f} s; {self.waiting()}")

    def _is_kept(self, call: Call) -> bool:
        """Keep a callback of a stopped process for later."""
        context: Context = call._context  # noqa: SLF001 - our own class
        kept = self._frozen.get(context.get(LIFE))  # type: ignore[arg-type] # None is no life
        if kept is not None:
            kept.append(call)
        return kept is not None

    def _jump(self) -> None:
        """Move time to the next timer, and make ready what is due then."""
        if self.on_quiet is not None:
            self.on_quiet()
            if self._ready:
                return
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # noqa: SLF001 - our own class
            heapq.heappop(timers)
        if not timers:
            raise Stuck(f"nothing can happen any more at {self._now:.1f} s; {self.waiting()}")
        when = timers[0][0]
        if when > self._max_virtual_s:
            raise Stuck(f"not at an end after {self._max_virtual_s:g} virtual s; {self.waiting()}")
        self._now = max(self._now, when)
        self.jumps += 1
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def run_in_executor(  # type: ignore[override] # no executor: this is the point
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run the function now and hand its result over later, or run it later: the seed says which."""
        del executor
        self.threads += 1
        future: asyncio.Future[T] = self.create_future()
        work: Callable[..., None] = self._work
        if (life := LIFE.get()) is not None and life.interleaves:
            work = partial(self._interleaved, life)
        takes = self._random.random() * _THREAD_S
        if takes < _THREAD_S / 2:
            work(future, func, args, 2 * takes)
        else:
            self.call_later(2 * takes - _THREAD_S, work, future, func, args, 0.0)
        return future

    def _interleaved(self, life: ProcessLife, *work: Any) -> None:
        """The same in a thread that can wait for others."""
        if not life.dead:
            SimThread(self, life, partial(self._work, *work)).start()

    def _work(
        self, future: "asyncio.Future[T]", func: Callable[..., T], args: tuple[Any, ...], later: float
    ) -> None:
        """Do a thread's whole work. If its life ends meanwhile, the result is dropped."""
        life = LIFE.get()
        result: T | None = None
        failed: BaseException | None = None
        try:
            if life is not None:
                life.moment("before a thread's work")
            try:
                result = func(*args)
            except PowerCut:
                raise
            except BaseException as error:  # noqa: BLE001 - handed to who waits for it
                failed = error
            if life is not None:
                life.moment("after a thread's work")
        except PowerCut:
            future.cancel()  # also a dead life's waiters must end
            return
        if later:
            self.call_later(later, tell, future, result, failed)
        else:
            tell(future, result, failed)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override] # as typeshed has it, without TypeVars
        """Store a handler in the life that sets it (see :meth:`Life.signal`)."""
        if (life := LIFE.get()) is not None:
            life.signals[sig] = lambda: self.call_soon(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Remove the handler."""
        life = LIFE.get()
        return life is not None and life.signals.pop(sig, None) is not None

    def waiting(self) -> str:
        """Waiting tasks and their places, in words."""
        return "waiting: " + (
            "; ".join(f"{t.get_name()} in {where_waits(t)}" for t in self.live_tasks()) or "nobody"
        )

    def _keep_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, task = context.get("exception"), context.get("task") or context.get("future")
        of_the_dead = isinstance(task, SimTask) and task.life is not None and task.life.dead
        if not of_the_dead and not _is_cut(error):
            self.faults.append(error or RuntimeError(str(context.get("message"))))

    def _write_to_self(self) -> None:
        """There is no selector to wake."""


def _is_cut(error: BaseException | None) -> bool:
    """Whether a life ended in this callback."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_cut(one) for one in error.exceptions)
    return isinstance(error, PowerCut)


def run(
    main: Callable[[SimLoop], Coroutine[Any, Any, T]],
    seed: int | str = 0,
    *,
    max_virtual_s: float = 100_000.0,
    max_steps: int = 20_000_000,
) -> T:
    """Run a world: ``main(loop)`` on a fresh :class:`SimLoop`, then cancel what is left.

    Raises:
        Stuck: it does not end; the message names waiting tasks and their places.
        BaseException: the first error that a callback raised and nobody caught.
    """
    loop = SimLoop(seed, max_virtual_s=max_virtual_s, max_steps=max_steps)
    with virtual_time(loop, seed):
        asyncio.set_event_loop(loop)
        try:
            result = loop.run_until_complete(main(loop))
            if loop.faults:
                raise loop.faults[0]
            return result
        finally:
            try:
                _cancel_all(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()


def _cancel_all(loop: SimLoop) -> None:
    tasks = loop.live_tasks()
    loop.on_quiet = None
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
