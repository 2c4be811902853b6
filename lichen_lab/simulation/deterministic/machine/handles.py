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
