"""SPAR is read without running foreign code, and only when its bytes are the published ones."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.simulation.data.sets import spar
from protocol.errors import Misconfigured


def _series(label: int, person: int = 1, n: int = 100) -> spar.Series:
    values = np.random.default_rng(label).normal(size=(n, 6)).astype(np.float32)
    return spar.Series(person, 0, label, values)


@pytest.fixture
def fake_seglearn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "seglearn"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('seglearn was executed')\n")
    (package / "data" / "watch_dataset.npy").write_bytes(b"not the published file")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delenv(spar.FILE_VARIABLE, raising=False)
    return package


def test_locating_does_not_execute_the_package(fake_seglearn: Path) -> None:
    assert spar.locate() == fake_seglearn / "data" / "watch_dataset.npy"
    assert "seglearn" not in sys.modules


def test_another_file_is_not_unpickled(fake_seglearn: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "boom").touch, ())

    file = fake_seglearn / "data" / "watch_dataset.npy"
    np.save(file, np.array(Bomb(), dtype=object), allow_pickle=True)
    with pytest.raises(Misconfigured, match="SHA-256"):
        spar.load()
    assert not (tmp_path / "boom").exists()


def test_a_missing_override_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spar.FILE_VARIABLE, "/nowhere/watch_dataset.npy")
    with pytest.raises(Misconfigured, match=r"LICHEN_SPAR_FILE=/nowhere"):
        spar.locate()


def test_a_recording_has_pauses_without_samples_and_without_a_label() -> None:
    recorded = spar.recording([_series(2), _series(5)], pause_s=1.0)
    t = recorded["gyroscope/t"]
    assert np.diff(t).max() == pytest.approx(1.0 + 1 / spar.RATE_HZ)
    assert recorded["label/values"].tolist() == [2, -1, 5, -1]
    assert recorded["label/t"].tolist() == pytest.approx([0.0, 2.0, 3.0, 5.0])
    assert recorded["accelerometer/values"].shape == (200, 3)
    assert spar.seconds(recorded) == pytest.approx(5.0)


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    series = [_series(label) for label in range(7)]
    orders = [spar.recording(series, seed=s)["label/values"].tolist() for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_limit_cuts_each_series_and_an_empty_list_is_an_empty_recording() -> None:
    recorded = spar.recording([_series(0), _series(1)], limit_s=0.5)
    assert len(recorded["gyroscope/t"]) == 50
    assert len(spar.recording([])["accelerometer/values"]) == 0


@pytest.mark.data
def test_the_published_file_agrees_with_the_independent_copy() -> None:
    try:
        path = spar.locate()
    except Misconfigured as error:
        pytest.skip(str(error))
    series = spar.load(path)
    assert len(series) == 140
    assert {s.person for s in series} == set(spar.PEOPLE)
    assert all(sum(s.label == c for s in series) == 20 for c in range(len(spar.LABELS)))
    assert "seglearn" not in sys.modules
    root = Path(os.environ.get("LICHEN_DATA", Path(__file__).parents[7] / "shared" / "data"))
    packed = root / "spar" / "spar.npz"
    if not packed.is_file():
        pytest.skip(f"{packed} is not here: set LICHEN_DATA")
    with np.load(packed) as other:
        together = np.concatenate([s.values for s in series])
        assert np.abs(together - other["x"]).max() < 1e-6
        assert [s.label for s in series] == other["y"].tolist()
        assert [s.person for s in series] == other["subject"].tolist()


def test_the_other_wrist_is_mirrored_and_this_one_untouched() -> None:
    left, right = _series(1), spar.Series(1, 1, 2, _series(2).values)
    ours, mirrored = spar.on_one_wrist([left, right])
    assert ours is left
    assert mirrored.side == 0
    # a vector changes its sign across the mirror, an axial vector along it
    assert np.array_equal(mirrored.values[:, [0, 4, 5]], -right.values[:, [0, 4, 5]])
    assert np.array_equal(mirrored.values[:, 1:4], right.values[:, 1:4])
