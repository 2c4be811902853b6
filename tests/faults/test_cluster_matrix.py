"""Faults of a leader, an ingest process and PostgreSQL at chosen steps of a round, with the default lease.

`lichen bench matrix --cluster` runs all faults at all steps.
"""

from pathlib import Path

import pytest

from lichen_lab.benchmarks.fault_injection.cluster import runner
from lichen_lab.benchmarks.fault_injection.cluster.matrix import CLUSTER_STEPS, INGESTS, LEADS
from lichen_lab.benchmarks.fault_injection.matrix import DEVICES
from tests.support.lab.matrix_model import model
from tests.support.network.brokers import require_mosquitto
from tests.support.storage.postgres import require_postgres

__all__ = ["model"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

_MAY_END = {"stop-leader": {*LEADS}, "crash-postgres": {*LEADS, *INGESTS}}
"""Whose lease was taken, or who finds out too late whether it committed, starts again by design."""


@pytest.mark.parametrize(
    ("fault", "at"),
    [
        ("kill-leader", ("collecting", "committing the version", "exporting")),
        ("stop-leader", ("committing the count",)),
        ("kill-ingest", ("uploading chunks", "waiting for the receipt", "committing an update")),
        ("stop-ingest", ("committing an update",)),
        ("crash-postgres", ("committing an update", "committing the count", "committing the version")),
    ],
)
def test_whoever_is_killed_or_stopped_every_update_counts_once_and_a_round_has_one_version(
    fault: str, at: tuple[str, ...], model: Path
) -> None:
    require_mosquitto()
    require_postgres()
    row = runner.run(fault, model, steps=tuple(step for step in CLUSTER_STEPS if step.name in at))
    assert [cell.step for cell in row.cells] == list(at)
    assert row.verdict.violations == []
    assert row.verdict.compared == len(at) + 1, "each version equals the undisturbed fold, bit for bit"
    assert row.verdict.accepted == len(at) * len(DEVICES), "nobody was left out of a round"
    assert row.verdict.acknowledged + row.verdict.waiting == row.verdict.accepted
    if fault.endswith("leader"):
        assert all(cell.leader_s is not None for cell in row.cells), "another process led"
    ended = {words.partition(" ")[0] for words in row.deaths}
    assert ended <= _MAY_END.get(fault, set()), row.deaths
