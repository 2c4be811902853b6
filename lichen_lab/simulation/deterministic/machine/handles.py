"""Callbacks and tasks of a simulation: lean, and the same in each run."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from lichen_lab.simulation.deterministic.machine.process_life import ProcessLife


class Call(asyncio.TimerHandle):
    """A lean handle: ``asyncio.Handle`` looks at the loop's debug mode at each one."""

    __slots__ = ()

    def __init__(  # the base class would do it more slowly
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        self._callback: Any = callback
        self._args: Any = args
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        """Cancel it; the loop drops it at its time."""
        self._cancelled = True
        self._callback = self._args = None


class SimTask(asyncio.Task[Any]):
    """A task with its life; its place in a set is the same in each run."""

    def __init__(
        self, number: int, life: ProcessLife | None, coro: Coroutine[Any, Any, Any], **how: Any
    ) -> None:
        self.number = number  # first: the base class puts us into a set
        self.life = life
        super().__init__(coro, **how)

    def __hash__(self) -> int:
        return self.number


def tell(future: "asyncio.Future[Any]", result: object, failed: BaseException | None) -> None:
    """Hand over what a thread's work gave."""
    if future.done():  # the waiter was cancelled
        return
    if failed is None:
        future.set_result(result)
    else:
        future.set_exception(failed)


def where_waits(task: "asyncio.Task[Any]") -> str:
    """The innermost line of a task, as file:line."""
    frames = task.get_stack(limit=1)
    awaited: Any = task.get_coro()
    while (inner := getattr(awaited, "cr_await", None)) is not None and hasattr(inner, "cr_frame"):
        awaited = inner
    frame = getattr(awaited, "cr_frame", None) or (frames[0] if frames else None)
    if frame is None:
        return "?"
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
