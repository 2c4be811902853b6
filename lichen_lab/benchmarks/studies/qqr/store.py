"""Finished runs of the study on disk: ``benchmarks.run_cache``, with the answers to probes added up."""

from dataclasses import asdict
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.run_cache import Kept, format_of
from lichen_lab.benchmarks.studies.qqr.settings import Outcome, Setting

_FIGURES: Final = tuple(
    f"lichen_lab/benchmarks/studies/qqr/{name}.py"
    for name in ("one", "personal", "probes", "setting", "studies", "trained")
)
"""What decides which figures a run leaves, and what they mean."""
_SOURCES: Final = (
    *_FIGURES,
    "models",
    "protocol",
    "coordinator/aggregation/fold.py",
    "coordinator/ingest/header_checks.py",
    "coordinator/aggregation/outlier_screen.py",
    "edge_agent/inference/onnx_models/encoder_model.py",
    "edge_agent/training/update_encoding.py",
    "export/encoder_models.py",
    "lichen_lab/simulation/data/sets",
    "lichen_lab/simulation/data/online_fleet.py",
    "lichen_lab/simulation/training/device.py",
    "lichen_lab/simulation/training/engine.py",
    "lichen_lab/simulation/data/streams.py",
    "lichen_lab/simulation/data/dataset_tasks.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


class Store(Kept[Setting, Outcome]):
    """Finished runs by setting; arguments as of :class:`lichen_lab.benchmarks.run_cache.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, *, any_code: bool = False) -> None:
        super().__init__(path, format_of("qqr", _SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)

    def keep(self, key: str, outcome: Outcome) -> None:
        """Remember a run; what an earlier one was asked stays answered."""
        before = self._done.get(key)
        probes = {**(before.probes if before else {}), **outcome.probes}
        super().keep(key, Outcome(**{**asdict(outcome), "probes": probes}))

    def get(self, setting: Setting) -> Outcome | None:
        """The run of that setting, where every probe that it asks for was answered."""
        found = super().get(setting)
        return found if found is not None and set(setting.probes) <= set(found.probes) else None
