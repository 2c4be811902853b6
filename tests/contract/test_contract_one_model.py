"""What a method promises whose model for devices is the same for all versions: one export is enough."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.config.versions import WorkerSettings
from coordinator.workers.jobs import ExportLineage, WorkerJobs
from export.bundle_builder import Lineage as Said
from export.bundle_builder import make_bundle
from export.job import do
from models.registry import methods
from protocol.bundle import unpack
from tests.support.methods.contract_cases import task_of

ONE_MODEL = [spec for spec in methods().values() if spec.one_model]
FIRST = ExportLineage(1, None, "1" * 64, {"mrr": 0.25})
SECOND = ExportLineage(2, "1" * 64, "2" * 64, {"mrr": 0.5, "hits1": 0.125})


@pytest.fixture
def exports(monkeypatch) -> list[str]:
    """Folders of export jobs; each is done here."""
    folders: list[str] = []

    async def run(self, folder: Path, timeout_s: float) -> None:
        del self, timeout_s
        folders.append(folder.name)
        do(folder)

    monkeypatch.setattr("runtime.process.worker.Worker.run", run)
    return folders


@pytest.mark.long
@pytest.mark.parametrize("spec", ONE_MODEL, ids=lambda spec: spec.name)
async def test_a_version_is_packed_again_to_the_bytes_that_an_export_gives(spec, exports, tmp_path) -> None:
    task = task_of(spec)
    first = spec.client().initial(task, seed=3)
    second = {
        blob: {name: np.asarray(value + 1, value.dtype) for name, value in tensors.items()}
        for blob, tensors in first.items()
    }
    made = WorkerJobs(task, tmp_path / "jobs", None, WorkerSettings())
    once = await made.export(first, FIRST)
    again = await made.export(second, SECOND)
    assert exports == ["export-1"], "the second one took no process"
    data, _ = make_bundle(task, second, Said(2, 2, SECOND.manifest, SECOND.parent, SECOND.metrics))
    assert again.data == data
    assert (again.result["size"], again.result["parity"]) == (len(data), once.result["parity"])
    assert unpack(once.data)[0].version == 1


async def test_versions_of_other_methods_are_exported_each(tmp_path, monkeypatch) -> None:
    spec, folders = replace(ONE_MODEL[0], one_model=False), []

    async def run(self, folder: Path, timeout_s: float) -> None:
        del self, timeout_s
        folders.append(folder.name)
        (folder / "bundle.zip").write_bytes(b"a bundle")
        (folder / "result.json").write_text("{}")

    monkeypatch.setattr("coordinator.workers.jobs.methods", lambda: {spec.name: spec})
    monkeypatch.setattr("runtime.process.worker.Worker.run", run)
    made = WorkerJobs(task_of(spec), tmp_path / "jobs", None, WorkerSettings())
    await made.export({}, FIRST)
    await made.export({}, SECOND)
    assert folders == ["export-1", "export-2"]
