"""Device weights of guided rounds, as a table of the coordinator's database."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from coordinator.aggregation.device_weights import FULL, WeightReport, shares
from coordinator.storage import schema
from coordinator.storage.database import Database
from runtime.metrics import MetricFamily, gauge


class DeviceWeightStore:
    """The table. Synchronous, thread-safe."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def write(self, round_: int, weighed: WeightReport) -> None:
        """Store a round's weights. Joins the caller's transaction."""
        self._store.put(schema.weighings, round=round_, **weighed.as_json())

    def metrics(self) -> Iterable[MetricFamily]:
        """Metrics of the newest guided round: the lightest devices, and the number of warnings."""
        found = newest(self._store)
        if found is None:
            return
        lightest = (
            one for part, weights in found["weights"].items() for one in list(shares({part: weights}))[:FULL]
        )
        values = [((device, part), share) for part, device, share in lightest]
        words = "Weight of a device in the newest version's fold; 1 is an equal share"
        yield MetricFamily("lichen_device_weight", words, "gauge", values, ("device", "part"))
        words = "Warnings about the newest version's weights, such as of devices that are pushed out"
        yield gauge("lichen_weighing_warnings", words, len(found["warnings"]))


def newest(store: Database) -> dict[str, Any] | None:
    """``round``, ``weights`` and ``warnings`` of the newest guided round."""
    table = schema.weighings
    asked = (
        sa.select(table.c.round, table.c.weights, table.c.warnings).order_by(table.c.round.desc()).limit(1)
    )
    found = store.rows(asked)
    return found[0] if found else None
