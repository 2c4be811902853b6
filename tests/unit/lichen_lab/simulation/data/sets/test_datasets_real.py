"""The loaders on the real data sets, where they are."""

from pathlib import Path

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.qqr.probes import halves
from lichen_lab.simulation.data import fetch
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import av_mnist, dsads, hapt, spar_windows, uci_har, uci_har_digests
from models.tensors import read_arrays
from protocol.errors import Misconfigured
from tests.support.lab import made_data

pytestmark = pytest.mark.data
PARTS: tuple[Part, ...] = ("train", "test")


def here(*names: str) -> None:
    """Skips, saying why, where a data set is not."""
    for name in names:
        try:
            locations.folder(name)
        except Misconfigured as error:
            pytest.skip(str(error))


def test_uci_har_is_as_its_authors_counted_it() -> None:
    here("uci_har")
    train, test = (uci_har.load(part) for part in PARTS)
    assert np.bincount(train.windows.y_B).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(test.windows.y_B).tolist() == [496, 471, 420, 491, 532, 537]
    assert set(test.person_B.tolist()) == set(uci_har.TEST_PEOPLE)
    assert {*train.person_B.tolist()} | {*test.person_B.tolist()} == set(uci_har.PEOPLE)
    # Someone who stands or lies feels 1 g, of which the body's own acceleration has none.
    still = train.windows.y_B >= 3
    for acceleration, wanted in (("total", 1.0), ("body", 0.0)):
        x_BCT = uci_har.load("train", acceleration).windows.x["accelerometer"]  # type: ignore[arg-type]
        felt = np.linalg.norm(x_BCT[still].mean(axis=2), axis=1)
        assert float(np.median(felt)) == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize("part", PARTS)
def test_a_window_of_uci_har_shares_samples_with_its_neighbours_of_the_same_class_alone(part: Part) -> None:
    """What the benchmark's split of a person's windows rests on: one left out between them is enough."""
    here("uci_har")
    split = uci_har.load(part)
    shared = 0
    for person in np.unique(split.person_B).tolist():
        windows = split.of_person(person).windows
        x_BCT, y_B = windows.x["accelerometer"], windows.y_B
        begins = [one.tobytes() for one in x_BCT[:, :, :64]]
        assert len(set(begins)) == len(begins)
        place = {half: at for at, half in enumerate(begins)}
        ends = [place.get(one.tobytes()) for one in x_BCT[:, :, 64:]]
        found = [(at, after) for at, after in enumerate(ends) if after is not None]
        assert all(after == at + 1 and y_B[at] == y_B[after] for at, after in found)
        shared += len(found)
        own, other = (one.x["accelerometer"] for one in halves(split, person))
        parts = [
            {one.tobytes() for x in (x_BCT[:, :, :64], x_BCT[:, :, 64:]) for one in x}
            for x_BCT in (own, other)
        ]
        assert not parts[0] & parts[1]
    assert shared == {"train": 6752, "test": 2690}[part]


@pytest.mark.parametrize("digits", [8, 9])
def test_the_real_set_survives_the_official_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: int
) -> None:
    """Text with 9 digits holds any float32; the published text has 8, and these values need no more."""
    here("uci_har")
    parts = {}
    for part in PARTS:
        arrays = read_arrays(uci_har.packed(part), "it")
        parts[part] = {key: arrays[key][::20] for key in ("x", "y", "subject")}
    monkeypatch.setattr(
        uci_har_digests, "DIGESTS", {part: uci_har_digests.digest(parts[part]) for part in PARTS}
    )
    (tmp_path / "a.zip").write_bytes(made_data.nested(made_data.zipped(made_data.har_texts(parts, digits))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = fetch.fetch_uci_har(tmp_path / "a.zip", force=True)
    for part in PARTS:
        fetched = read_arrays(done.folder / uci_har.file_name(part), "it")
        assert fetched["x"].tobytes() == parts[part]["x"].tobytes()
        for key in parts[part]:
            assert np.array_equal(fetched[key], parts[part][key]), key


def test_the_packed_copy_is_the_published_one() -> None:
    here("uci_har")
    uci_har_digests.verify({part: read_arrays(uci_har.packed(part), "it") for part in PARTS}, "here")


def test_hapt_streams_hold_the_windows_of_the_same_people() -> None:
    here("hapt_raw")
    found = hapt.sessions()
    assert len(found) == 61
    assert {one.person for one in found} == set(hapt.PEOPLE)
    label = np.concatenate([one.recorded["label/values"] for one in found])
    assert set(label.tolist()) == {-1, *range(12)}
    labelled = 0.0
    for one in found:
        recorded = one.recorded
        t, values = recorded["label/t"], recorded["label/values"]
        ends = np.append(t[1:], recorded["accelerometer/t"][-1] + 1 / hapt.RATE_HZ)
        labelled += float((ends - t)[values >= 0].sum()) * hapt.RATE_HZ
        still = np.abs(recorded["accelerometer/values"]).sum(axis=1)
        assert 0.8 < float(np.median(still)) < 2.0  # g, over three axes
    assert round(labelled) == 815_614
    assert {one.person for one in hapt.sessions(4, 5)} == {4, 5}


def test_spar_packed_and_published_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    here("spar")
    packed = spar_windows.unpack(read_arrays(locations.file("spar", "spar.npz"), "it"), "it")
    monkeypatch.delenv("LICHEN_SPAR_FILE", raising=False)
    assert len(packed) == 140
    series = spar_windows.series()
    for one, other in zip(series, packed, strict=True):
        assert (one.person, one.side, one.label) == (other.person, other.side, other.label)
        assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize("modality", ["image", "audio"])
def test_av_mnist_says_the_digit_in_each_modality(
    modality: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("mnist", "fsdd")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train, test = av_mnist.load("train", limit=3000), av_mnist.load("test", limit=1000)
    means = [train.windows.x[modality][train.windows.y_B == digit].mean(axis=0) for digit in range(10)]
    far_BK = np.stack([((test.windows.x[modality] - mean) ** 2).sum(axis=(1, 2)) for mean in means], axis=1)
    assert float((far_BK.argmin(axis=1) == test.windows.y_B).mean()) > 0.3  # the class whose mean is nearest


def test_dsads_has_thirty_windows_of_every_person_and_activity() -> None:
    here("dsads")
    for person in dsads.PEOPLE:
        windows = dsads.load(person).windows
        assert np.bincount(windows.y_B).tolist() == [30] * len(dsads.LABELS)
    # Gravity is in the accelerometer: someone who sits feels it with every unit.
    sitting = windows.x["accelerometer"][windows.y_B == 0].mean(axis=2).reshape(-1, len(dsads.UNITS), 3)
    felt_BU = np.linalg.norm(sitting, axis=2)
    assert np.median(felt_BU, axis=0) == pytest.approx(np.full(len(dsads.UNITS), 9.81), abs=0.1)
