"""The initial model for rows of the fault matrix without torch: made once by the real worker."""

import shutil
from pathlib import Path

import pytest

from lichen_lab.benchmarks.fault_injection import matrix_bench
from lichen_lab.benchmarks.fault_injection.faults import FAULTS
from lichen_lab.benchmarks.fault_injection.matrix import DEVICES, MatrixRow
from lichen_lab.benchmarks.fault_injection.steps import STEPS
from tests.support.network.brokers import require_mosquitto


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = tmp_path_factory.getbasetemp() / "matrix-initial.npz"
    if not kept.exists():  # each file that imports this fixture has one of its own
        with matrix_bench.initial_model(light=True) as made:
            assert made is not None
            shutil.copyfile(made, kept)
    return kept


def survives(name: str, model: Path) -> MatrixRow:
    """The fault at every step: each round ends, and no acknowledged message is lost."""
    require_mosquitto()
    row = matrix_bench.run_row(FAULTS[name], model)
    assert [cell.step for cell in row.cells] == [step.name for step in STEPS]
    assert row.verdict.violations == []
    assert row.verdict.compared == len(STEPS) + 1, "each version equals the undisturbed fold, bit for bit"
    assert row.verdict.accepted == len(STEPS) * len(DEVICES), "nobody was left out of a round"
    # if a coordinator ends with a receipt on its way, the device sends the update again
    assert row.verdict.acknowledged + row.verdict.waiting == row.verdict.accepted
    return row
