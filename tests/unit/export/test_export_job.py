import errno
import json
import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from export import job as export_job
from export.cli import read_state, route_of
from export.job import do, read_job
from lichen.commands.export import app
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task
from runtime.outputs import NotWritten
from runtime.storage.blob_store import BlobStore
from runtime.storage.disk import DISK
from tests.support.tasks import stream, task_toml

JOB = {
    "kind": "export",
    "task": {"name": "t", "labels": ["a", "b"], "modalities": [{"name": "m", "channels": 1, "rate_hz": 10}]},
    "version": 3,
    "round": 3,
    "manifest_digest": "0" * 64,
    "metrics": {"accuracy": 0.5},
}


def blob(store: BlobStore, name: str, value: float = 1.0):
    tensors = {f"{name}/w": encode(np.full((2, 2), value, np.float32), Codec.FLOAT32)}
    return store.put(encode_frame(BlobHeader(name=name), tensors))


def test_a_job_is_read_with_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    job = read_job(tmp_path)
    assert (job.version, job.parent, job.threads) == (3, None, 1)
    assert job.task.modality_names == ("m",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"manifest_digest": "abc"}, "manifest_digest"),
        ({"task": {"name": "t"}}, r"task: .*labels: two or more"),
        ({"kind": "x"}, "kind"),
    ],
)
def test_a_wrong_job_names_file_and_field(tmp_path: Path, change, words: str) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB | change))
    with pytest.raises(Misconfigured, match=rf"job\.json: {words}"):
        do(tmp_path)


def test_a_missing_job_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"job\.json: No such file"):
        do(tmp_path)


def test_an_old_result_does_not_outlive_a_job_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    for name in ("bundle.zip", "result.json"):
        (tmp_path / name).write_text("of the job before")
    monkeypatch.setattr(
        export_job, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name)
    )
    with pytest.raises(Misconfigured, match=r"needs onnxscript.*pip install 'lichen\[export\]'"):
        do(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_state_is_read_from_a_stores_blobs_without_touching_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    ref = blob(store, "head", 7.0)
    cut_off = tmp_path / ref.digest[:2] / ".tmp-being-written"
    cut_off.write_bytes(b"by a running coordinator")
    manifest = Manifest(task="t", method="qqr", version=1, blobs={"head": ref})
    state = read_state(manifest, tmp_path)
    assert np.array_equal(state["head"]["head/w"], np.full((2, 2), 7.0))
    assert cut_off.exists()


def test_missing_corrupt_and_swapped_blobs_are_named(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    ref = blob(store, "head")
    swapped = Manifest(task="t", method="qqr", version=1, blobs={"encoder/m": ref})
    with pytest.raises(Refused, match="holds 'head', the manifest says 'encoder/m'"):
        read_state(swapped, tmp_path)
    manifest = Manifest(task="t", method="qqr", version=1, blobs={"head": ref})
    store.path(ref.digest).write_bytes(b"rotten")
    with pytest.raises(Refused, match="'head' differs from its digest") as info:
        read_state(manifest, tmp_path)
    assert info.value.reason is Reason.WRONG_DIGEST
    store.path(ref.digest).unlink()
    with pytest.raises(Misconfigured, match=r"'head' of version 1.*--blobs"):
        read_state(manifest, tmp_path)
    with pytest.raises(Misconfigured, match=r"no such folder.*--blobs"):
        read_state(manifest, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file.*--manifest"),
        ("not json", "no manifest"),
        ('{"task": "t"}', "method: Field required"),
    ],
)
def test_a_wrong_manifest_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    task = tmp_path / "task.toml"
    task.write_text(task_toml(streams={"m": stream(1, 10)}))
    manifest = tmp_path / "manifest.json"
    if text is not None:
        manifest.write_text(text)
    options = {"blobs": tmp_path, "manifest": manifest, "task": task, "out": tmp_path / "b.zip"}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, Misconfigured)
    with pytest.raises(Misconfigured, match=words):
        raise result.exception


def test_a_version_of_another_task_is_not_exported(tmp_path: Path) -> None:
    task, manifest = tmp_path / "task.toml", tmp_path / "manifest.json"
    task.write_text(task_toml(streams={"m": stream(1, 10)}))
    manifest.write_text(Manifest(task="other", method="qqr", version=1, blobs={}).model_dump_json())
    words = [
        "--blobs",
        str(tmp_path),
        "--manifest",
        str(manifest),
        "--task",
        str(task),
        "--out",
        str(tmp_path / "b"),
    ]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, Misconfigured)
    assert "'other'" in str(result.exception)


def test_windows_that_are_not_there_are_named_by_their_option(tmp_path: Path) -> None:
    task, manifest = tmp_path / "task.toml", tmp_path / "manifest.json"
    task.write_text(task_toml(streams={"m": stream(1, 10)}))
    manifest.write_text(Manifest(task="t", method="qqr", version=1, blobs={}).model_dump_json())
    options = {"blobs": tmp_path, "manifest": manifest, "task": task, "out": tmp_path / "b"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(app, [*words, "--calibrate", "gone.npz"])
    assert isinstance(result.exception, Misconfigured)
    assert str(result.exception).startswith("--calibrate gone.npz: no such file")


def test_a_pipe_a_device_or_a_folder_is_not_replaced_by_the_bundle(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    options = {name: str(tmp_path / name) for name in ("blobs", "manifest", "task")}
    for out in (pipe, tmp_path):
        words = [
            word for name, value in (options | {"out": str(out)}).items() for word in (f"--{name}", value)
        ]
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, NotWritten)
        assert result.exception.exit_code == 73
    assert pipe.is_fifo()


def routed(**config: object) -> Task:
    return Task.model_validate(
        JOB["task"]
        | {"method": "disentafl", "config": config, "targets": [{"name": "pose", "labels": ["x", "y"]}]}
        | {"modalities": [{"name": name, "channels": 1, "rate_hz": 10} for name in ("m", "n")]}
    )


def test_a_part_of_a_routed_model_is_chosen_by_what_it_reads_and_predicts() -> None:
    whole, part = route_of(routed(), (), ()), route_of(routed(), ("n",), ("pose",))
    assert whole is not None
    assert part is not None
    assert {"base/m", "base/n", "decoder/label", "decoder/pose"} < set(whole)
    assert set(part) < set(whole)
    assert {name for name in part if name.startswith(("base", "decoder"))} == {"base/n", "decoder/pose"}
    assert route_of(Task.model_validate(JOB["task"]), (), ()) is None


@pytest.mark.parametrize(
    ("task", "inputs", "targets", "words"),
    [
        (routed(), ("x",), (), "--input x: task 't' has m, n"),
        (routed(), (), ("mood",), "--target mood: task 't' has label, pose"),
        (Task.model_validate(JOB["task"]), ("m",), (), "method 'qqr' has one for all"),
        (routed(width=7), (), (), "config.width"),
    ],
)
def test_a_part_that_is_not_there_is_refused(task: Task, inputs, targets, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        route_of(task, inputs, targets)


def test_only_the_blobs_of_the_route_are_read(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    refs = {name: blob(store, name) for name in ("base/m", "base/n")}
    manifest = Manifest(task="t", method="disentafl", version=1, blobs=refs)
    store.path(refs["base/m"].digest).write_bytes(b"rotten")
    assert set(read_state(manifest, tmp_path, ["base/n"])) == {"base/n"}
    with pytest.raises(Misconfigured, match=r"version 1 of t has no blob 'base/x'.*--task"):
        read_state(manifest, tmp_path, ["base/x"])


@pytest.mark.parametrize(
    ("out", "trouble", "code", "words"),
    [
        ("file/b", 0, 73, "cannot be made"),
        ("b", errno.ENOSPC, 74, "No space left"),
        ("b", errno.EIO, 74, "not written"),
        ("b", errno.EACCES, 77, "another user"),
        ("b", errno.EROFS, 77, "another user"),
        ("new/b", 0, 0, ""),
    ],
)
def test_a_bundle_that_cannot_be_written_ends_as_any_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, out: str, trouble: int, code: int, words: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("lichen.commands.export.load_toml", lambda *_, **__: Task.model_validate(JOB["task"]))
    named = Manifest(task=JOB["task"]["name"], method="qqr", version=1, blobs={})
    monkeypatch.setattr("lichen.commands.export.read_manifest", lambda _: (named, "a" * 64))
    monkeypatch.setattr("export.cli.read_state", lambda *_: {})
    parity = SimpleNamespace(as_dict=dict)
    monkeypatch.setattr("export.bundle_builder.make_bundle", lambda *_: (b"bundle", parity))
    disk = SimDisk(tmp_path)
    disk.trouble = trouble
    options = {"blobs": tmp_path, "manifest": tmp_path, "task": tmp_path, "out": tmp_path / out}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    before = DISK.set(disk)
    try:
        result = CliRunner().invoke(app, [*given, "--format", "json"])
    finally:
        DISK.reset(before)
    if not code:
        assert (tmp_path / out).read_bytes() == b"bundle", result.exception
        return
    assert isinstance(result.exception, NotWritten)
    assert result.exception.exit_code == code
    assert words in str(result.exception)
    assert str(tmp_path / out) in str(result.exception)
