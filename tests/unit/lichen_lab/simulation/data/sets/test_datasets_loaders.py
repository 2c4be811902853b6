"""The loaders, on small made copies of each packed form."""

import gzip
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lichen_lab.simulation.data.access import idx, locations
from lichen_lab.simulation.data.access import log_mel as logmel
from lichen_lab.simulation.data.sets import av_mnist, dsads, hapt, spar, spar_windows, uci_har
from models.data.streams.recording import read
from models.data.window_set import check
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task, Window
from tests.support.lab import made_data, tactfl_study


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the data sets; nothing else is looked at."""
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("LICHEN_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "beside_checkout", lambda: tmp_path / "none")
    return root


def task(labels: tuple[str, ...], modalities: tuple[Modality, ...], seconds: float) -> Task:
    return Task(name="t", labels=labels, modalities=modalities, window=Window(length_s=seconds, stride_s=1.0))


def test_uci_har_takes_the_chosen_channels_and_counts_classes_from_zero(root: Path) -> None:
    parts = made_data.har_parts()
    made_data.write_har(root, parts)
    split = uci_har.load("train")
    check(split.windows, task(uci_har.LABELS, uci_har.MODALITIES, uci_har.WINDOW_S))
    assert np.array_equal(split.windows.x["accelerometer"], parts["train"]["x"][:, 6:])
    assert np.array_equal(split.windows.x["gyroscope"], parts["train"]["x"][:, 3:6])
    assert split.windows.y_B.tolist() == [0, 1, 2, 3, 4]
    body = uci_har.load("test", acceleration="body")
    assert np.array_equal(body.windows.x["accelerometer"], parts["test"]["x"][:, :3])
    assert body.person_B.tolist() == [2] * 4
    assert len(body.of_person(2)) == 4
    assert len(body.of_person(1)) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x", None),
        ("x", np.zeros((5, 9, 64), np.float32)),
        ("x", np.zeros((5, 9, 128), np.float64)),
        ("x", np.full((5, 9, 128), np.nan, np.float32)),
        ("y", np.array([0, 1, 2, 3, 4], np.int8)),
        ("y", np.array([1, 2, 3, 4, 7], np.int8)),
        ("y", np.ones(5, np.float32)),
        ("subject", np.array([1, 1, 1, 1], np.int8)),
        ("subject", np.array([1, 1, 1, 1, 31], np.int8)),
    ],
)
def test_uci_har_in_another_form_is_refused_by_key(root: Path, key: str, value: Any) -> None:
    parts = made_data.har_parts()
    if value is None:
        del parts["train"][key]
    else:
        parts["train"][key] = value
    made_data.write_har(root, parts)
    with pytest.raises(Misconfigured, match=rf"uci_har_train\.npz: key '{key}'"):
        uci_har.load("train")


def test_hapt_recordings_have_units_and_a_label_where_it_changes(root: Path, tmp_path: Path) -> None:
    (root / "hapt_raw").mkdir()
    np.savez(root / "hapt_raw" / "hapt_raw.npz", **made_data.hapt_arrays())  # type: ignore[arg-type]
    first, second = hapt.sessions()
    assert (first.person, first.number, second.person, second.number) == (3, 1, 30, 2)
    assert first.recorded["accelerometer/values"][1].tolist() == [1.5, 2.0, 2.5]
    assert second.recorded["gyroscope/values"][0].tolist() == [-6.0, -6.25, -6.5]
    assert first.recorded["label/t"].tolist() == [0.0, 0.04, 0.08, 0.12, 0.14]
    assert first.recorded["label/values"].tolist() == [-1, 4, 6, 4, -1]
    assert second.recorded["label/values"].tolist() == [0, 1, 11]
    assert [r["label/values"].tolist() for r in hapt.recordings(30, transitions=False)] == [[0, 1, -1]]
    spar.save(tmp_path / "r.npz", first.recorded)
    replayed = read(tmp_path / "r.npz")  # as an agent replays it
    assert replayed.label.tolist() == [-1, 4, 6, 4, -1]
    assert replayed.span() == (0.0, 0.14)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("acc", np.zeros((13, 3), np.int16)),
        ("gyro", np.zeros((14, 3), np.float32)),
        ("acc_lsb_g", np.array([0.5, 0.5])),
        ("rec_length", np.array([8, 7], np.int32)),
        ("rec_start", np.array([-1, 8], np.int32)),
        ("rec_subject", np.array([1], np.int8)),
    ],
)
def test_hapt_in_another_form_is_refused(root: Path, key: str, value: Any) -> None:
    (root / "hapt_raw").mkdir()
    arrays = made_data.hapt_arrays() | {key: value}
    np.savez(root / "hapt_raw" / "hapt_raw.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match=rf"hapt_raw\.npz: .*{key}"):
        hapt.sessions()


def ramps(*people: int) -> tuple[spar.Series, ...]:
    """Series of 300 samples: two windows and a rest that fills none."""
    value = np.arange(300, dtype=np.float32)[:, None]
    return tuple(spar.Series(p, 0, p % 7, value + 1000 * p + np.arange(6, dtype=np.float32)) for p in people)


def test_spar_windows_are_of_one_series_each_and_half_overlap() -> None:
    split = spar_windows.cut(ramps(1, 2))
    check(split.windows, task(spar_windows.LABELS, spar_windows.MODALITIES, spar_windows.WINDOW_S))
    first = split.windows.x["accelerometer"][:, 0, 0]
    assert first.tolist() == [1000, 1064, 1128, 2000, 2064, 2128]
    assert split.windows.x["gyroscope"][0, 2, -1] == 1000 + 127 + 5
    assert split.person_B.tolist() == [1, 1, 1, 2, 2, 2]
    assert split.windows.y_B.tolist() == [1, 1, 1, 2, 2, 2]
    assert len(spar_windows.cut([])) == 0
    (one,) = ramps(1)
    lengths = {
        count: len(spar_windows.cut([replace(one, values=one.values[:count])])) for count in (127, 128, 256)
    }
    assert lengths == {127: 0, 128: 1, 256: 3}


def test_spar_people_are_in_one_part_and_the_seed_deals_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spar_windows, "series", lambda: ramps(*spar.PEOPLE))
    train, test = spar_windows.load("train", 4), spar_windows.load("test", 4)
    assert set(train.person_B.tolist()) == set(spar_windows.people("train", 4))
    assert sorted({*train.person_B.tolist()} | {*test.person_B.tolist()}) == list(spar.PEOPLE)
    assert not {*train.person_B.tolist()} & {*test.person_B.tolist()}
    assert len({spar_windows.people("test", seed) for seed in range(20)}) > 10


def test_spar_comes_from_the_packed_form_where_its_package_is_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LICHEN_SPAR_FILE", str(root / "none.npy"))
    with pytest.raises(Misconfigured, match="LICHEN_SPAR_FILE"):
        spar_windows.series()
    packed = {
        "x": np.arange(60, dtype=np.float32).reshape(10, 6),
        "start": np.array([0, 4]),
        "length": np.array([4, 6]),
        "y": np.array([2, 5]),
        "subject": np.array([1, 9]),
        "side": np.array([0, 1]),
    }
    (root / "spar").mkdir()
    np.savez(root / "spar" / "spar.npz", **packed)  # type: ignore[arg-type]
    one, other = spar_windows.series()
    assert (one.person, one.side, one.label, len(one.values)) == (1, 0, 2, 4)
    assert other.values[0, 0] == 24
    packed["length"] = np.array([4, 7])
    np.savez(root / "spar" / "spar.npz", **packed)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="outside the 10 samples"):
        spar_windows.series()


def test_av_mnist_pairs_an_image_with_a_sound_of_its_digit_and_part(root: Path) -> None:
    made_data.write_mnist(root)
    made_data.write_fsdd(root)
    split = av_mnist.load("train", seed=1)
    check(split.windows, task(av_mnist.LABELS, av_mnist.MODALITIES, av_mnist.WINDOW_S))
    # A row is a moment: channel w, time h of image 3 shows pixel 28 h + w + 3.
    assert split.windows.x["image"][3, 5, 2] == np.float32((28 * 2 + 5 + 3) % 256) / np.float32(255)
    loudest = split.windows.x["audio"].mean(axis=2).argmax(axis=1)
    by_digit = [set(loudest[split.windows.y_B == digit].tolist()) for digit in range(10)]
    assert all(max(low) < min(high) for low, high in pairwise(by_digit))
    assert set(split.person_B.tolist()) == {0, 1}


def test_av_mnist_keeps_the_recordings_of_the_parts_apart(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_data.write_mnist(root, digits=400)
    made_data.write_fsdd(root)
    index_S = made_data.fsdd_arrays()["index"]
    numbers = np.broadcast_to(
        np.arange(len(index_S), dtype=np.float32)[:, None, None], (len(index_S), 32, 50)
    )
    monkeypatch.setattr("lichen_lab.simulation.data.access.log_mel.log_mel", lambda _clips: numbers.copy())
    used = {part: av_mnist.load(part).windows.x["audio"][:, 0, 0].astype(int) for part in ("train", "test")}  # type: ignore[arg-type]
    assert set(index_S[used["test"]].tolist()) == {0, 1, 2, 3, 4}
    assert set(index_S[used["train"]].tolist()) == {5, 6, 7}


def test_av_mnist_under_a_limit_is_a_part_of_the_whole(root: Path) -> None:
    made_data.write_mnist(root)
    made_data.write_fsdd(root)
    whole, some = av_mnist.load("train", seed=3), av_mnist.load("train", seed=3, limit=12)
    assert len(some) == 12
    rows = {(x.tobytes(), a.tobytes()) for x, a in zip(*whole.windows.x.values(), strict=True)}
    assert all((x.tobytes(), a.tobytes()) in rows for x, a in zip(*some.windows.x.values(), strict=True))
    assert av_mnist.load("train", seed=3, limit=12).windows.y_B.tolist() == some.windows.y_B.tolist()
    assert av_mnist.load("train", seed=4, limit=12).windows.y_B.tolist() != some.windows.y_B.tolist()
    assert len(av_mnist.load("test", limit=10**6)) == 20


@pytest.mark.parametrize("spoil", ["absent", "damaged", "other shape", "closed", "a file in the way"])
def test_sounds_are_computed_once_and_again_where_the_cache_cannot_be_used(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    made_data.write_mnist(root)
    made_data.write_fsdd(root)
    first = av_mnist.load("test").windows.x["audio"]
    (kept,) = (tmp_path / "cache").rglob("*.npz")
    calls: list[int] = []
    counted(monkeypatch, calls)
    assert np.array_equal(av_mnist.load("test").windows.x["audio"], first)
    assert not calls
    if spoil == "absent":
        kept.unlink()
    elif spoil == "damaged":
        data = bytearray(kept.read_bytes())
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
    elif spoil == "other shape":
        np.savez(kept, values=np.zeros((2, 2), np.float32))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc" if spoil == "closed" else str(kept))
    assert np.array_equal(av_mnist.load("test").windows.x["audio"], first)
    assert len(calls) == 1


def counted(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    real = logmel.log_mel

    def log_mel(clips: Any) -> Any:
        calls.append(len(clips))
        return real(clips)

    monkeypatch.setattr(logmel, "log_mel", log_mel)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("audio", np.zeros(10, np.int16)),
        ("audio", np.zeros(10, np.float32)),
        ("digit", np.full(160, 10, np.int8)),
        ("speaker", np.full(160, 6, np.int8)),
        ("start", np.zeros(159, np.int32)),
    ],
)
def test_sounds_in_another_form_are_refused(root: Path, key: str, value: Any) -> None:
    made_data.write_mnist(root)
    made_data.write_fsdd(root, made_data.fsdd_arrays() | {key: value})
    with pytest.raises(Misconfigured, match=r"fsdd\.npz"):
        av_mnist.load("train")


def test_idx_is_read_plain_or_packed(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(made_data.idx(values))
    (tmp_path / "a.gz").write_bytes(gzip.compress(made_data.idx(values)))
    assert np.array_equal(idx.read(tmp_path / "a"), values)
    assert np.array_equal(idx.read(tmp_path / "a.gz"), values)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read as idx"),
        (b"PK\x03\x04aaaa", "does not begin like"),
        (b"\0\0\x0d\x01\0\0\0\x01aaaa", "does not begin like"),
        (made_data.idx(np.zeros((2, 3), np.uint8))[:-1], "says 6 values, the file has fewer"),
        (made_data.idx(np.zeros((2, 3), np.uint8)) + b"1", "says 6 values, the file has more"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "claims 18446744065119617025 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_that_is_none_is_refused(tmp_path: Path, data: bytes, words: str, *, packed: bool) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(Misconfigured, match=words):
        idx.read(path)
    if packed:
        path.write_bytes(gzip.compress(made_data.idx(np.zeros(99, np.uint8)))[:-9])
        with pytest.raises(Misconfigured, match=r"a\.gz: cannot be read as idx"):
            idx.read(path)


def test_mnist_whose_files_do_not_belong_together_is_refused(root: Path) -> None:
    made_data.write_mnist(root)
    labels = root / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(made_data.idx(np.zeros(39, np.uint8)))
    with pytest.raises(Misconfigured, match=r"train-images.*MNIST has \(39, 28, 28\)"):
        av_mnist.images("train")
    labels.write_bytes(made_data.idx(np.full(40, 10, np.uint8)))
    with pytest.raises(Misconfigured, match="labels must be 0 to 9"):
        av_mnist.images("train")


def test_dsads_has_the_sensors_of_all_units_in_their_units(root: Path) -> None:
    tactfl_study.write_dsads(root)
    split = dsads.load(3)
    check(split.windows, task(dsads.LABELS, dsads.MODALITIES, dsads.WINDOW_S))
    stored = np.load(root / dsads.FOLDER / dsads.file_name(3))["x"]
    of_gyroscopes = [9 * unit + 3 + axis for unit in range(5) for axis in range(3)]
    assert np.array_equal(split.windows.x["gyroscope"], 0.5 * stored[:, of_gyroscopes])
    assert split.person_B.tolist() == [3] * 6
    with pytest.raises(Misconfigured, match="dsads_p9"):
        dsads.load(9)
