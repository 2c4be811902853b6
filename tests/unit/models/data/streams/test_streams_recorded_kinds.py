"""Recordings with images, sound, vectors and texts: read, checked against a task, cut, written again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.data.labelled_windows import load
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording, Stream, read, write_npz
from models.data.streams.recording_findings import of_recording
from models.data.streams.windows import Windows
from models.data.text_ngrams import counts_of
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Modality, Task, Window
from tests.support.tasks import small_task

CAMERA = Modality(name="camera", kind="image", channels=3, height=10, width=8, rate_hz=5)
VECTOR = Modality(name="vector", kind="vector", channels=4, rate_hz=5)
WORDS = Modality(name="words", kind="text", channels=64, rate_hz=1)
T = np.arange(50) / 5
PIXELS = np.random.default_rng(0).integers(0, 256, (50, 3, 10, 8)).astype(np.uint8)


def task(*modalities: Modality) -> Task:
    return small_task(modalities, "ab", window=Window(length_s=2.0, stride_s=1.0))


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "made.npz"
    named: dict[str, Any] = {name.replace("__", "/"): array for name, array in arrays.items()}
    np.savez(path, **named)
    return path


def windows(made: Task, recording: Recording) -> Windows:
    (found,) = cut(made, recording)
    return found


def kinds(made: Task, recording: Recording) -> dict[str, str]:
    return {f.kind: f.words for f in of_recording(made, recording) if f.kind != "missing-modality"}


@pytest.mark.parametrize("form", ["frames", "rows", "rows with a shape", "floats", "disordered"])
def test_images_are_frames_channel_first_or_the_same_in_rows(tmp_path: Path, form: Any) -> None:
    arrays: dict[str, np.ndarray] = {"camera__t": T, "camera__values": PIXELS.reshape(50, -1)}
    if form in {"frames", "disordered"}:
        arrays["camera__values"] = PIXELS
    elif form == "rows with a shape":
        arrays["camera__shape"] = np.array([3, 10, 8])
        arrays["camera__kind"] = np.array(["image"])
    elif form == "floats":
        arrays["camera__values"] = PIXELS.astype(np.float64)
    if form == "disordered":
        order = np.random.default_rng(0).permutation(50)
        arrays = {name: array[order] for name, array in arrays.items()}
    recording = read(npz(tmp_path, **arrays))
    stream = recording.streams["camera"]
    assert stream.values.dtype == (np.float32 if form == "floats" else np.uint8), "bytes stay bytes"
    found = windows(task(CAMERA), recording)
    np.testing.assert_array_equal(found.x["camera"][0], PIXELS[9].reshape(3, 80))
    assert "channels" not in kinds(task(CAMERA), recording)


def test_a_recording_is_written_as_it_was_read(tmp_path: Path) -> None:
    given = Recording(
        {
            "camera": Stream(T, PIXELS.reshape(50, -1), size=(3, 10, 8)),
            "words": Stream(T[:2], np.zeros((2, 0), np.float32), texts=("it boils", "it is off")),
        }
    )
    write_npz(tmp_path / "one.npz", given)
    with np.load(tmp_path / "one.npz") as file:
        assert file["camera/values"].shape == (50, 3, 10, 8)
    found = read(tmp_path / "one.npz")
    assert found.streams["camera"].size == (3, 10, 8)
    np.testing.assert_array_equal(found.streams["camera"].values, given.streams["camera"].values)
    assert found.streams["words"].texts == ("it boils", "it is off")


REFUSED = {
    "channels last": (
        {"camera__values": PIXELS.transpose(0, 2, 3, 1).repeat(2, 1)},
        "moveaxis.values, -1, 1",
    ),
    "grey without an axis": ({"camera__values": PIXELS[:, 0]}, r"\(n, C, H, W\), with C = 1 for grey"),
    "another number": ({"camera__values": PIXELS[:49]}, r"\(49, 240\) should be"),
    "a shape that lies": (
        {"camera__values": PIXELS.reshape(50, -1), "camera__shape": np.array([3, 10, 9])},
        r"'camera' has frames \(3, 10, 9\), .* and 'camera/values' has 240 values",
    ),
    "a shape of one axis": (
        {"camera__values": PIXELS.reshape(50, -1), "camera__shape": np.array([240])},
        r"frames \(240,\), \(C, H, W\) is needed",
    ),
    "a shape below nothing": (
        {"camera__values": PIXELS.reshape(50, -1), "camera__shape": np.array([-1, -240, 1])},
        r"frames \(-1, -240, 1\), \(C, H, W\) is needed",
    ),
    "images without pixels": ({"camera__values": PIXELS[..., :0]}, r"frames \(3, 10, 0\)"),
    "words for pixels": ({"camera__values": np.full((50, 240), "x")}, "not numbers"),
    "numbers for words": ({"camera__text": np.arange(50)}, r"'camera/text' holds int64 \(50,\), not text"),
    "both": (
        {"camera__text": np.full(50, "x"), "camera__values": PIXELS},
        "'camera/text' comes with 'camera/t' and without values",
    ),
    "too few texts": ({"camera__text": np.full(49, "x")}, "49 texts and times float64 .50,.; each needs one"),
}


@pytest.mark.parametrize(("arrays", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_frame_and_no_text_is_refused_in_words(tmp_path: Path, arrays: Any, words: Any) -> None:
    with pytest.raises(Misconfigured, match=words):
        read(npz(tmp_path, camera__t=T, **arrays))


ROWS = Stream(T, PIXELS.reshape(50, -1))
FRAMES = Stream(T, PIXELS.reshape(50, -1), size=(3, 10, 8))
TEXTS = Stream(T[:3], np.zeros((3, 0), np.float32), texts=("a", "b", "c"))
TURNED = CAMERA.model_copy(update={"height": 8, "width": 10})
MISFITS = {
    "turned": (TURNED, FRAMES, "images of 10 x 8 pixels with 3 channels, the task says images of 8 x 10"),
    "another size": (
        CAMERA.model_copy(update={"height": 5}),
        ROWS,
        "240 values a frame, not 120, the task says images of 5 x 8 pixels with 3 channels",
    ),
    "images for a vector": (VECTOR, FRAMES, "has images, the task says vectors of 4 values .kind 'vector'"),
    "another vector": (VECTOR, ROWS, "has 240 values, the task says vectors of 4 values"),
    "texts for a vector": (VECTOR, TEXTS, "has texts, the task says vectors of 4 values"),
    "numbers for a text": (WORDS, ROWS, "has 240 values, the task says texts in 64 buckets"),
}


@pytest.mark.parametrize(("modality", "stream", "words"), MISFITS.values(), ids=MISFITS.keys())
def test_data_of_another_kind_or_size_is_named_by_the_check_and_by_the_windows(
    modality: Any, stream: Any, words: Any
) -> None:
    made, recording = task(modality), Recording({modality.name: stream})
    with pytest.raises(Misconfigured, match=words):
        next(cut(made, recording))
    (found,) = [f for f in of_recording(made, recording) if f.kind == "channels"]
    assert found.severity == "error"
    with pytest.raises(Misconfigured, match=words):
        raise Misconfigured(found.words)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_have_vectors_in_columns_and_texts_in_a_column_of_words(tmp_path: Path, suffix: Any) -> None:
    path = tmp_path / f"made{suffix}"
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 4)).round(3)
    texts = ["", "it boils", "", "", "it is off, or not", *[""] * 14, "42"]
    if suffix == ".csv":
        lines = ["t,vector.a,vector.b,vector.c,vector.d,words.text,label"]
        lines += [
            f'{t},{",".join(map(str, v))},"{w}",{"a" if t < 2 else "b"}'
            for t, v, w in zip(T, vectors, texts, strict=False)
        ]
        path.write_text("\n".join(lines))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns: dict[str, Any] = {
            "t": T[:20],
            **{f"vector.{c}": vectors[:, i] for i, c in enumerate("abcd")},
        }
        columns |= {"words.text": [w or None for w in texts], "label": ["a"] * 10 + ["b"] * 10}
        pq.write_table(pa.table(columns), path)
    made, recording = task(VECTOR, WORDS), read(path)
    found = windows(made, recording)
    np.testing.assert_array_equal(found.x["vector"][0, :, 0], vectors[9].astype(np.float32))
    expected = counts_of(["it is off, or not", "42"], 64)
    np.testing.assert_array_equal(found.x["words"][0, :, 0], expected[0])
    assert found.present_BM[:, 1].tolist() == [True, False, True, True][: len(found)]
    np.testing.assert_array_equal(found.x["words"][2, :, 0], expected[1])
    assert found.y_B[0] == 0
    labelled = made.model_copy(update={"labelled": Labelled(file=path.name)})
    of_table = load(labelled, tmp_path)
    np.testing.assert_array_equal(of_table.x["words"][0, :, 0], expected[0])


def test_a_column_of_texts_beside_numbers_of_the_same_modality_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    path.write_text("t,words.text,words.a\n0,hello,1\n")
    with pytest.raises(Misconfigured, match=r"'words' has a column of texts and 'words\.a'"):
        read(path)


def test_findings_of_frames_and_texts() -> None:
    dead = Stream(T, np.repeat(PIXELS[:1].reshape(1, -1), 50, 0))
    assert "all 50 samples are equal" in kinds(task(CAMERA), Recording({"camera": dead}))["constant"]
    far = Stream(np.append(T, T[-1] + 20), np.concatenate([ROWS.values, ROWS.values[:1]]))
    assert "over 2 s (window.length_s)" in kinds(task(CAMERA), Recording({"camera": far}))["gaps"]
    bounded = CAMERA.model_copy(update={"low": 0.0, "high": 100.0})
    assert "100.0% of its samples go beyond" in kinds(task(bounded), Recording({"camera": ROWS}))["bounds"]
    values = PIXELS.reshape(50, -1).astype(np.float32)
    values[:5, 7] = np.nan
    holes = kinds(task(CAMERA), Recording({"camera": Stream(T, values)}))
    assert "5 of 50 samples" in holes["not-a-number"]
    assert kinds(task(CAMERA), Recording({"camera": ROWS})) == {}
    assert kinds(task(WORDS), Recording({"words": TEXTS})) == {}, "texts come when they come"
    twice = Stream(np.zeros(3), TEXTS.values, texts=TEXTS.texts)
    assert [*kinds(task(WORDS), Recording({"words": twice}))] == ["same-times"]
