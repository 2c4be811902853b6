"""Stored figures of a tiny run of every study: with the same seed, the same run leaves the same.

``study_runs.json`` holds what the runs of :data:`RUNS` left when it was made. A processor that rounds in
another way may see one window in another class, no more. ``python -m tests.golden.test_golden_studies`` makes
it anew; to do so is a change of a study (a CHANGELOG line). ``lichen bench rekey`` compares to the last bit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from lichen_lab.benchmarks.studies.disentafl.baselines import RUNS as DISENTAFL
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.federation import run as disentafl
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflSetting
from lichen_lab.benchmarks.studies.mmfed3_hide.federation import run as mmfed3
from lichen_lab.benchmarks.studies.qqr import run_spec as qqr
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import QqrRun
from lichen_lab.benchmarks.studies.qqr.settings import QqrSetting as Training
from lichen_lab.benchmarks.studies.tactfl.baselines import RUNS as TACTFL
from lichen_lab.benchmarks.studies.tactfl.federation import run as tactfl
from lichen_lab.benchmarks.study.rekey import untimed
from lichen_lab.benchmarks.study.run_spec import RunOutcome, quiet
from tests.support.lab import mmfed3_study, qqr_study, tactfl_study

FILE: Final = Path(__file__).parent / "study_runs.json"
SMALL: Final = DisentAflSetting(rounds=2, batch=8, width=16, latent=8, hidden=8, options={"tokens": 4})
CHOSEN: Final = {**SMALL.options, "devices_per_round": 2, "selection": "bandit"}
SPLITS: Final = {"train": qqr_study.made_split((1, 3, 5), 0), "test": qqr_study.made_split((2, 4), 1)}


def _tactfl(run: Callable[..., RunOutcome]) -> RunOutcome:
    return run(tactfl_study.fleet(), tactfl_study.TINY, 0, quiet)


def _disentafl(run: Callable[..., RunOutcome], setting: DisentAflSetting) -> RunOutcome:
    return run(build(0, devices=4, train=12, test=8), setting, 0, quiet)


def _mmfed3() -> RunOutcome:
    return mmfed3(mmfed3_study.small_fleet(), mmfed3_study.TINY, 0, quiet)


def _qqr() -> RunOutcome:
    asked = QqrRun(setting=Training(v.quantity(v.PNR)), conditions=v.HALF, probes=("dead_sensor",))
    with patch.object(qqr, "_loaded", lambda _name, part: SPLITS[part]):
        return qqr.run(qqr_study.tiny(asked))


RUNS: Final[Mapping[str, Callable[[], RunOutcome]]] = {
    "tactfl tactfl": partial(_tactfl, tactfl),
    **{f"tactfl {name}": partial(_tactfl, TACTFL[name]) for name in ("fedopt", "autoencoder", "labelled")},
    "disentafl disentafl": partial(_disentafl, disentafl, replace(SMALL, options=CHOSEN)),
    "disentafl cross_fedavg": partial(_disentafl, DISENTAFL["cross_fedavg"], SMALL),
    "mmfed3_hide mmfed3_hide": _mmfed3,
    "qqr qqr": _qqr,
}


def _told(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(untimed(asdict(RUNS[name]()))))
    return found


def _same(told: Any, stored: Any, path: str = "") -> None:
    if isinstance(stored, dict):
        assert set(told) == set(stored), path
        for name, value in stored.items():
            _same(told[name], value, f"{path}/{name}")
    elif isinstance(stored, list):
        assert len(told) == len(stored), path
        for at, (mine, value) in enumerate(zip(told, stored, strict=True)):
            _same(mine, value, f"{path}/{at}")
    else:
        # in per cent a window is up to four points, as a fraction of more windows up to two hundredths
        room = 4.0 if 1 < (stored or 0) <= 100 else 0.02
        assert told == (stored if stored is None else pytest.approx(stored, rel=0.01, abs=room)), path


@pytest.mark.parametrize("name", RUNS)
def test_golden_a_run_of_a_study_leaves_what_it_left(name: str) -> None:
    _same(_told(name), json.loads(FILE.read_text())[name], name)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: _told(name) for name in RUNS}, indent=1) + "\n")
