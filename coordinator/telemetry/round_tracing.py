"""The spans that a coordinator records of its rounds (docs/tracing.md). Off, it is one attribute check."""

import asyncio
from typing import Final

import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.errors import LichenError
from protocol.frames.headers import UpdateHeader
from runtime.clock import Clock
from runtime.tracing.spans import RoundTrace, Tracer, Value

_NEVER: Final = 0.0


class RoundTracing:
    """Used in one event loop.

    Args:
        tracer: takes the spans.
        store: knows when rounds were opened.
        fleet: its name.
        task: its name.
        clock: the time.
    """

    def __init__(self, tracer: Tracer, store: Database, fleet: str, task: str, clock: Clock) -> None:
        self._tracer, self._store, self._fleet, self._task, self._clock = tracer, store, fleet, task, clock
        self._now = RoundTrace(fleet, task, 0, "")

    @property
    def on(self) -> bool:
        """Whether spans go anywhere."""
        return self._tracer.on

    def wall(self) -> float:
        """Unix seconds; off, 0: nobody asks."""
        return self._clock.wall() if self._tracer.on else _NEVER

    def accepted(self, header: UpdateHeader, arrived: float, verified: float) -> None:
        """An update is in the journal and synced."""
        if not self._tracer.on:
            return
        trace = RoundTrace(self._fleet, self._task, header.round, header.base)
        now, device = self._clock.wall(), header.device
        self._tracer.span(trace, "verify", arrived, verified, device)
        self._tracer.span(trace, "journal", verified, now, device)
        self._tracer.span(trace, "ingest", arrived, now, device)

    def closing(self, round_: int, base: str) -> float:
        """The updates of a round are to be folded; the present time."""
        self._now = RoundTrace(self._fleet, self._task, round_, base)
        return self.wall()

    def step(self, name: str, since: float, **attributes: Value) -> None:
        """A step of the round that is being closed is over."""
        if self._tracer.on:
            self._tracer.span(self._now, name, since, self._clock.wall(), "", **attributes)

    async def closed(self, since: float, devices: int) -> None:
        """The version of the round is registered."""
        if not self._tracer.on:
            return
        opened = await asyncio.to_thread(self._opened, self._now.round)
        self.step("close", since)
        self.step("round", opened or since, devices=devices)

    def exported(self, version: int, parent: str | None, since: float, exported: float) -> None:
        """The bundle of a version is made and announced."""
        if not self._tracer.on or parent is None:
            return
        trace = RoundTrace(self._fleet, self._task, version, parent)
        self._tracer.span(trace, "export", since, exported, version=version)
        self._tracer.span(trace, "announce", exported, self._clock.wall())

    def _opened(self, round_: int) -> float:
        """When the round was first opened; 0 if that is not known."""
        table = schema.attempts
        first = sa.select(sa.func.min(table.c.opened_wall).label("wall")).where(table.c.round == round_)
        try:
            return float(self._store.rows(first)[0]["wall"] or _NEVER)
        except LichenError:
            return _NEVER
