"""Sound files and images -> recordings, which task init and data check then take."""

import json
import struct
import tomllib
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lichen.commands.data import app
from lichen.commands.task import app as task_app
from lichen.data_import.image_import import read as read_image
from lichen.data_import.output import forms
from lichen.data_import.sounds import wav
from lichen.data_import.sounds.resampling import Resampler
from models import npz
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


def imported(*words: object) -> dict[str, object]:
    done = CliRunner().invoke(app, ["import", *map(str, words), "--format", "json"])
    assert done.exit_code == 0, done.exception
    found: dict[str, object] = json.loads(done.stdout)
    return found


def sound(path: Path, values: np.ndarray, rate: int = 8000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())
    return path


def picture(path: Path, value: int, size: tuple[int, int] = (8, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)
    return path


def task_of(folder: Path, out: Path) -> Task:
    done = CliRunner().invoke(task_app, ["init", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.exception
    return Task.model_validate(tomllib.loads(out.read_text()))


def riff(
    code: int, bits: int, data: bytes, channels: int = 1, *, extensible: bool = False, says: int | None = None
) -> bytes:
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else code, channels, 8000, 8000 * block, block, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, code) + bytes(14)
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"fmt " + struct.pack("<I", len(form)) + form
    return (
        b"RIFF"
        + struct.pack("<I", 0)
        + b"WAVE"
        + chunks
        + b"data"
        + struct.pack("<I", len(data) if says is None else says)
        + data
    )


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("code", "bits", "data"),
    [
        (1, 8, bytes([0, 128, 192])),
        (1, 16, struct.pack("<3h", -32768, 0, 16384)),
        (1, 24, b"\0\0\x80" + b"\0\0\0" + b"\0\0\x40"),
        (1, 32, struct.pack("<3i", -(2**31), 0, 2**30)),
        (3, 32, struct.pack("<3f", -1, 0, 0.5)),
        (3, 64, struct.pack("<3d", -1, 0, 0.5)),
    ],
)
def test_each_form_of_wav_gives_the_same_values(
    tmp_path: Path, code: int, bits: int, data: bytes, *, extensible: bool
) -> None:
    (tmp_path / "a.wav").write_bytes(riff(code, bits, data, extensible=extensible))
    values = np.concatenate([*wav.opened(tmp_path / "a.wav").blocks()])
    np.testing.assert_array_equal(values, [[-1], [0], [0.5]])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"RIFX", "no WAV file"),
        (riff(1, 16, b"\0" * 8, says=80), "cut off"),
        (riff(6, 8, b"\0" * 8), "format 6 with 8 bits"),
        (riff(1, 16, b"", says=0), "no sample"),
        (riff(1, 16, b"")[:-8], "ends before its samples"),
    ],
)
def test_a_damaged_wav_is_refused_in_words(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(Misconfigured, match=words):
        wav.opened(tmp_path / "a.wav")


def test_a_length_that_its_program_did_not_know_goes_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(1, 16, bytes(20), says=0xFFFFFFFF))
    assert wav.opened(tmp_path / "a.wav").samples == 10


@pytest.mark.parametrize("rates", [(44100, 16000), (8000, 16000), (11025, 8000)])
def test_another_rate_keeps_tones_and_removes_what_it_cannot_hold(rates: tuple[int, int]) -> None:
    rate_in, rate_out = rates
    t = np.arange(rate_in // 4) / rate_in

    def resampled(hz: float, parts: int) -> np.ndarray:
        resampler = Resampler(rate_in, rate_out, 1)
        x = np.sin(2 * np.pi * hz * t).astype(np.float32)[:, None]
        return np.concatenate([*map(resampler.push, np.array_split(x, parts)), resampler.finish()])[:, 0]

    tone = resampled(440, 9)
    np.testing.assert_array_equal(tone, resampled(440, 1))
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(tone)) / rate_out)
    np.testing.assert_allclose(tone[200:-200], wanted[200:-200], atol=2e-4)
    if rate_in > rate_out:
        assert np.abs(resampled(rate_in * 0.45, 2)[200:-200]).max() < 1e-3


def test_labelled_clips_become_examples_of_equal_length(tmp_path: Path) -> None:
    for speaker in ("ann", "bob"):
        for digit in range(3):
            sound(
                tmp_path / "in" / f"{digit}_{speaker}_0.wav", np.full(1000 + 400 * digit, 3276 * (digit + 1))
            )
    (tmp_path / "in" / "1_bob_9.wav").write_bytes(b"RIFF of nothing")
    report = imported(tmp_path / "in", "--pattern", "{label}_{device}_*", "--out", tmp_path / "rec")
    assert [one["examples"] for one in report["recordings"]] == [3, 3]  # type: ignore[attr-defined]
    assert "1_bob_9.wav" in str(report["refused"])
    arrays = npz.read(tmp_path / "rec" / "ann.npz")
    assert arrays["sound/values"].shape == (3 * 2400, 1), "0.3 s each: the longest, rounded up to tenths"
    for at, label in enumerate(arrays["label/values"].astype(int).tolist()):
        clip = arrays["sound/values"][2400 * at : 2400 * (at + 1), 0]
        assert np.count_nonzero(clip) == 1000 + 400 * label
        assert clip[0] == pytest.approx(3276 * (label + 1) / 32768)
    task = task_of(tmp_path / "rec", tmp_path / "task.toml")
    (modality,) = task.modalities
    assert (modality.kind, modality.rate_hz, modality.channels) == ("sound", 8000, 1)
    assert (task.window.length_s, task.window.stride_s, len(task.labels)) == (0.3, 0.3, 3)
    words = ["check", str(tmp_path / "task.toml"), "--data", str(tmp_path / "rec"), "--format", "json"]
    checked = json.loads(CliRunner().invoke(task_app, words).stdout)
    assert checked["data"]["by_class"] == {"class_0": 2, "class_1": 2, "class_2": 2}
    assert checked["data"]["by_modality"]["sound"] == checked["data"]["by_class"]


def test_long_sound_follows_itself_with_a_gap_and_its_class(tmp_path: Path) -> None:
    for name in ("a", "b"):
        both = np.stack([np.full(90_000, 1000), np.full(90_000, 3000)], axis=1)
        sound(tmp_path / "in" / "room" / f"{name}.wav", both, channels=2)
    imported(tmp_path / "in", "--out", tmp_path / "rec", "--rate-hz", "4000")
    arrays = npz.read(tmp_path / "rec" / "all.npz")
    assert len(arrays["sound/t"]) == 90_000
    np.testing.assert_allclose(arrays["sound/values"][1000:1010, 0], 2000 / 32768, rtol=1e-3)
    np.testing.assert_allclose(np.diff(arrays["sound/t"]).max(), 10, atol=0.001)
    assert arrays["label/values"].tolist() == ["room", "", "room", ""]


def test_images_of_folders_become_examples_and_a_corrupt_one_is_refused(tmp_path: Path) -> None:
    for at in range(6):
        picture(tmp_path / "in" / "ab"[at % 2] / f"{at}.jpg", 40 * at)
    whole = (tmp_path / "in" / "a" / "0.jpg").read_bytes()
    (tmp_path / "in" / "a" / "bad.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "in" / "a" / "none.png").write_bytes(b"hello")
    (tmp_path / "in" / "notes.txt").write_text("what I thought")
    report = imported(
        tmp_path / "in", "--out", tmp_path / "rec", "--size", "4x3", "--colour", "--labels", labels(tmp_path)
    )
    assert len(report["refused"]) == 0  # type: ignore[arg-type]
    report = imported(
        tmp_path / "in" / "a", tmp_path / "in" / "b", "--out", tmp_path / "flat", "--size", "4x3"
    )
    assert sorted(words.split(": ")[0].rpartition("/")[2] for words in report["refused"]) == [  # type: ignore[attr-defined]
        "bad.jpg",
        "none.png",
    ]
    arrays = npz.read(tmp_path / "rec" / "ann.npz")
    assert arrays["camera/values"].shape == (6, 3 * 3 * 4)
    assert arrays["camera/values"].dtype == np.uint8
    assert arrays["camera/shape"].tolist() == [3, 3, 4]
    red = arrays["camera/values"][:, :12].mean(axis=1)
    for value, label in zip(red, arrays["label/values"], strict=True):
        assert ("a", "b")[round(value / 40) % 2] == label, "each image with its own class"
    assert forms.read(tmp_path / "rec" / "ann.npz").example_s == 1
    task = task_of(tmp_path / "rec", tmp_path / "task.toml")
    (modality,) = task.modalities
    assert (modality.kind, modality.channels, modality.height, modality.width) == ("image", 3, 3, 4)
    assert (modality.scale, task.window.length_s) == (255, 1)


def labels(folder: Path) -> Path:
    rows = [f"in/{'ab'[at % 2]}/{at}.jpg,{'ab'[at % 2]},ann" for at in range(6)]
    (folder / "mine.csv").write_text("\n".join(["file,label,person", *rows, ""]))
    return folder / "mine.csv"


def test_a_labels_file_that_names_a_missing_file_says_its_line(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a.png", 1)
    (tmp_path / "in" / "labels.csv").write_text("file,label\na.png,x\ngone.png,y\n")
    done = CliRunner().invoke(app, ["import", str(tmp_path / "in"), "--out", str(tmp_path / "rec")])
    assert "labels.csv: line 3, column 'file': no file 'gone.png'" in str(done.exception)


def test_deeper_folders_name_the_device_and_dealing_makes_a_fleet(tmp_path: Path) -> None:
    for device in ("d1", "d2"):
        for at in range(6):
            picture(tmp_path / "in" / device / "ab"[at % 2] / f"{at}.png", at)
    report = imported(tmp_path / "in", "--out", tmp_path / "rec")
    assert sorted(one.name for one in (tmp_path / "rec").iterdir()) == ["d1.npz", "d2.npz"]
    assert report["classes"] == ["a", "b"]
    imported(tmp_path / "in", "--out", tmp_path / "dealt", "--deal", "3")
    counts = [len(npz.read(file)["camera/t"]) for file in (tmp_path / "dealt").iterdir()]
    assert (sum(counts), len(counts)) == (12, 3)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1", "CMYK", "LA"])
def test_every_mode_of_pixels_becomes_bytes(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(np.full((6, 8), 51_400, np.uint16)) if mode == "I;16" else Image.new(mode, (8, 6))
    image.save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"))
    found = read_image(next(tmp_path.iterdir()), (3, 4), colour=False)
    assert found.shape == (1, 3, 4)
    assert found.dtype == np.uint8
    if mode == "I;16":
        assert found.min() == found.max() == 200
    if mode in {"RGBA", "LA"}:
        assert found.min() == 255, "transparent is white"


def test_kinds_beside_each_other_need_a_choice(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    sound(tmp_path / "a.wav", np.ones(100))
    done = CliRunner().invoke(app, ["import", str(tmp_path), "--out", str(tmp_path / "rec")])
    assert "--kind" in str(done.exception)
