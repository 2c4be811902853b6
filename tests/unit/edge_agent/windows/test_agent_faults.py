"""Small faults around the agent: broken recordings, forgotten labels, stale answers, a damaged model."""

import asyncio
import contextlib
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from edge_agent.inference.onnx_models.window_model import read_manifest
from edge_agent.inference.service import RotatingLines
from edge_agent.messaging.outbox import MAX_WANTS
from edge_agent.sources.registry import open_source
from edge_agent.storage.round_ledger import RoundLedger
from models.data.streams.batches import LabelBatch, SampleBatch
from models.data.streams.recording import Recording, Stream, read, write_npz
from models.data.streams.windows import Windower
from protocol.errors import Misconfigured, Reason, Refused
from protocol.messages import Offer, Receipt, Want
from protocol.tasks.task import Modality, Task, Window
from runtime.clock import SystemClock
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_recording, toy_task
from tests.support.agent.link import FakeLink
from tests.support.clock import ManualClock
from tests.support.services import until
from tests.unit.edge_agent.deployment.test_agent_deploy import TASK, deploy, device, pointer
from tests.unit.edge_agent.messaging.test_agent_outbox import LARGE, put, running, spool

__all__ = ["spool"]


@pytest.mark.parametrize("at", [30, 200, 2000, 20000])
def test_an_npz_with_damage_anywhere_is_misconfigured_or_harmless(tmp_path, at):
    path = tmp_path / "toy.npz"
    recording = toy_recording(10)
    np.savez_compressed(path, **{"acc/t": recording.streams["acc"].t, "acc/values": np.zeros((500, 3))})
    data = bytearray(path.read_bytes())
    at = min(at, len(data) - 60)
    for seed in range(40):
        damaged = bytearray(data)
        damaged[at : at + 8] = np.random.default_rng(seed).bytes(8)
        path.write_bytes(damaged)
        with contextlib.suppress(Misconfigured):  # some bytes carry nothing
            read(path)


def test_an_npz_whose_compressed_bytes_are_damaged_names_the_file(tmp_path):
    path = tmp_path / "toy.npz"
    np.savez_compressed(path, **{"acc/t": np.arange(500.0), "acc/values": np.zeros((500, 3))})
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("acc/t.npy").header_offset
    data = bytearray(path.read_bytes())
    names = len("acc/t.npy") + int.from_bytes(data[at + 28 : at + 30], "little")
    data[at + 30 + names] = 0x07  # the first block of deflate is of a type that there is not
    path.write_bytes(data)
    with pytest.raises(Misconfigured, match=r"toy\.npz: not a plain npz file: error: Error -3"):
        read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"t,acc.x\n0,\xff\xfe\n", "not a csv file in UTF-8"),
        (b"t,acc.x,acc.x\n0,1,2\n", "column 'acc.x' occurs twice"),
        (b"t,acc.x\n0," + b"1" * 200_000 + b"\n", "not a csv file"),
    ],
)
def test_a_broken_csv_names_the_file(tmp_path, content, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match=words) as found:
        read(path)
    assert str(path) in str(found.value)


def test_a_kind_that_is_no_text_is_said(tmp_path):
    with pytest.raises(Misconfigured, match=r"source\[0\]\.kind: \['replay'\] is not a kind"):
        open_source({"kind": ["replay"]}, "source[0]", tmp_path, None, SystemClock())


async def _labels(folder: Path, **options) -> list[LabelBatch]:
    t = np.arange(0.005, 4.0, 0.02)
    stream = Stream(t, np.zeros((len(t), 1), np.float32))
    label_t, label = np.array([0.0, 2.0]), np.array([3, 4], np.int64)
    write_npz(folder / "r.npz", Recording({"acc": stream}, label_t, label))
    table = {"kind": "replay", "file": "r.npz", "speed": 10_000, **options}
    source = open_source(table, "source[0]", folder, None, SystemClock())
    found = []
    async for batch in source.samples():
        if isinstance(batch, LabelBatch):
            found.append(batch)
            if len(found) == 4:
                break
    return found


async def test_a_label_older_than_the_first_sample_holds_from_it(tmp_path):
    found = await _labels(tmp_path)
    assert (found[0].t[0], found[0].label[0]) == (0.005, 3)


async def test_a_recording_begun_in_its_middle_has_the_label_that_holds_there(tmp_path):
    found = await _labels(tmp_path, start_s=2.5)
    assert (found[0].t[0], found[0].label[0]) == (pytest.approx(2.505), 4)


async def test_each_turn_begins_with_its_label(tmp_path):
    found = await _labels(tmp_path, loop=True, loop_gap_s=0.0)
    labels = [int(one) for batch in found for one in batch.label]
    assert labels[:4] == [3, 4, -1, 3]


def test_absurd_values_and_times_are_counted_and_not_learnt_from():
    task = toy_task()
    windower = Windower(task, ("gyr",))
    t = np.arange(0, 10, 0.04)
    values = np.ones((len(t), 2), np.float32)
    values[10, 1] = 3e38
    times = t.copy()
    times[20] = 1e300
    windower.feed(SampleBatch("gyr", times, values), 0.0)
    assert windower.counters.not_finite == 2
    windows = windower.flush()
    assert np.abs(windows.x["gyr"]).max() == 1


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ({"length_s": 3600, "stride_s": 10}, r"window\.length_s"),
        ({"length_s": 2, "stride_s": 1e-9}, r"stride_s"),
        ({"length_s": 2, "stride_s": 0.001}, r"window\.stride_s"),
        ({"length_s": 1e-300, "stride_s": 1e-300}, r"length_s"),
        ({"length_s": 1, "stride_s": 0.001, "context_s": 3600}, r"window\.stride_s.* a second"),
    ],
)
def test_a_task_that_no_device_could_hold_is_refused(window, words):
    modality = Modality(name="acc", channels=64, rate_hz=20_000 if window["length_s"] == 3600 else 1)
    with pytest.raises(ValidationError, match=words):
        Task(name="t", labels=("a", "b"), modalities=(modality,), window=Window(**window))


@pytest.mark.parametrize("rate_hz", [1e-6, 20_000])
@pytest.mark.parametrize("length_s", [0.001, 3600])
@pytest.mark.parametrize("overlap", [1, 1024])
@pytest.mark.parametrize("max_gap_s", [1e-320, 3600])
def test_a_task_at_its_bounds_is_cut_without_an_error(rate_hz, length_s, overlap, max_gap_s):
    window = {"length_s": length_s, "stride_s": length_s / overlap, "max_gap_s": max_gap_s}
    try:
        modality = Modality(name="acc", channels=1, rate_hz=rate_hz)
        task = Task(name="t", labels=("a", "b"), modalities=(modality,), window=Window(**window))
    except ValidationError:
        return
    windower = Windower(task, ("acc",))
    for n, t in enumerate((1.8e9, 1.8e9 + 0.1, 1.8e9 + 3600, 1.8e9)):  # a gap, and a clock that is set back
        windower.feed(SampleBatch("acc", np.array([t]), np.ones((1, 1), np.float32)), float(n))
        for _ in range(3):
            windower.poll(float(n))


async def test_answers_about_updates_that_are_gone_do_not_hold_up_others(spool):
    link, name = FakeLink(chunk_bytes=1024), put(spool, LARGE)
    async with running(link, spool) as outbox:
        await until(lambda: link.on("up/update"))
        for n in range(MAX_WANTS):
            outbox.on_want(Want(digest=f"{n:064x}", missing=((0, 3),)))
        await asyncio.sleep(0.1)
        outbox.on_want(Want(digest=name, missing=((0, 2), (1, 2), (0, 1))))
        await until(lambda: len(link.sent) >= 4)
        assert len([topic for topic, *_ in link.sent if "up/blob" in topic]) == 3, "each chunk once"


def test_a_receipt_while_the_next_update_is_spooled_loses_neither(tmp_path):
    ledger = RoundLedger(tmp_path / "rounds.json", ManualClock())

    def offer(n: int) -> Offer:
        return Offer(task="t", round=n, base="a" * 64, base_size=1, closes_in_s=1)

    for n in range(1, 12):
        digest = f"{n:064x}"
        ledger.record_spooled(offer(n), digest)
        receipt = Receipt(task="t", round=n, digest=digest, status="accepted")
        both = [
            threading.Thread(target=ledger.settle, args=(receipt,)),
            threading.Thread(target=ledger.record_spooled, args=(offer(n + 1), f"{n + 1:064x}")),
        ]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert ledger.find(offer(n)).status == "accepted"
        assert ledger.find(offer(n + 1)).status == "spooled"


def test_predictions_on_a_full_disk_do_not_hold_up_the_end():
    lines = RotatingLines(Path("/dev/full"), 1000)
    lines.write(["x" * 100])
    lines.write(["x" * 100])
    lines.close()
    assert lines.failures == 2


async def test_a_kept_model_with_one_damaged_byte_is_not_used_and_is_pulled_again(tmp_path):
    async with device(tmp_path) as deployment:
        for version in (1, 2):
            data = bundle(TASK, version)
            await deploy(deployment, data, version)
        record = deployment.record
        assert set(deployment.shelf.forgotten) == set(record.digests), "bundles are not kept"
    file = tmp_path / "models" / record.committed.digest / "model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00\x01"[file.read_bytes()[-1] == 0 :][:1])
    with pytest.raises(Refused, match=r"model\.onnx is not what its manifest says") as found:
        read_manifest(file.parent)
    assert found.value.reason is Reason.WRONG_DIGEST
    async with device(tmp_path) as again:
        await until(lambda: again.inference.model, 20)
        assert again.inference.model.manifest.version == 1
        again.shelf.put(data)
        again.offer(pointer(data, 2))
        await until(lambda: again.inference.model.manifest.version == 2, 20)
        assert again.record.committed == record.before, "the one before is still there to fall back to"
        assert (tmp_path / "models" / record.before.digest).is_dir()


async def test_a_full_disk_while_a_model_comes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_agent.deployment.service._RETRY_S", 0.05)
    (tmp_path / "models").write_text("in the way")
    async with device(tmp_path) as deployment:
        deployment.offer(pointer(deployment.shelf.put(bundle(TASK)), 1))
        await until(lambda: len(deployment.shelf.fetched) >= 2, 20)
        (tmp_path / "models").unlink()
        await until(lambda: deployment.inference.model, 20)
