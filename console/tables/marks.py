"""Marks of the subjects of pages: each changes with what its pages show, and is read without a history."""

from collections.abc import Callable, Mapping
from typing import Final

import sqlalchemy as sa

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.diagnosis.device_logs import DEVICE_LOGS
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage import schema
from coordinator.storage.database import Database

Mark = Callable[[Database, CoordinatorSettings], object]
"""Reads a few rows; equal marks have equal texts (``repr``)."""
_NEWEST: Final = 3
"""Versions whose rows may still change: metrics come after the version."""


def rounds(store: Database, settings: CoordinatorSettings) -> object:
    """The last event of the round machine, and how the newest attempt stands."""
    del settings
    table, events, secure = schema.attempts, schema.events, schema.secure_rounds
    order = (table.c.round.desc(), table.c.attempt.desc())
    newest = sa.select(table.c.round, table.c.attempt, table.c.closed_wall).order_by(*order).limit(1)
    last = sa.select(sa.func.max(events.c.seq).label("seq"))
    stages = sa.select(sa.func.max(secure.c.wall).label("wall"), sa.func.sum(secure.c.attempt).label("n"))
    return store.rows(last), store.rows(newest), store.rows(stages)


def versions(store: Database, settings: CoordinatorSettings) -> object:
    """The newest versions with their metrics, and the newest bundles."""
    del settings
    table, exports, bundles = schema.versions, schema.exports, schema.bundles
    shown = sa.select(table.c.version, table.c.metrics, table.c.trouble)
    newest = store.rows(shown.order_by(table.c.version.desc()).limit(_NEWEST))
    last = sa.select(exports.c.version, exports.c.digest).order_by(exports.c.version.desc()).limit(1)
    routed = sa.select(sa.func.max(bundles.c.wall).label("wall"))
    return newest, store.rows(last), store.rows(routed)


def rollouts(store: Database, settings: CoordinatorSettings) -> object:
    """What the store of rollouts says of its last change."""
    return settings.location.mark(ROLLOUTS, store)


def evaluations(store: Database, settings: CoordinatorSettings) -> object:
    """When a device last reported on a version, or was taken out of its sums."""
    del settings
    table = schema.evaluation_sums
    return store.rows(
        sa.select(sa.func.max(table.c.wall).label("wall"), sa.func.sum(table.c.devices).label("n"))
    )


def device_logs(store: Database, settings: CoordinatorSettings) -> object:
    """What the tables of answers of devices say of their last change."""
    return settings.location.mark(DEVICE_LOGS, store)


MARKS: Final[Mapping[str, Mark]] = {
    "device-logs": device_logs,
    "evaluations": evaluations,
    "rollouts": rollouts,
    "rounds": rounds,
    "versions": versions,
}
"""By the name of their event."""
