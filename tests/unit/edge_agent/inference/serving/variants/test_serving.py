"""What runs a model: the way to its process, the choice among variants, the shadow, and the figures."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from edge_agent.config.agent import InferSettings
from edge_agent.deployment.trial_metrics import TrialMetrics, added
from edge_agent.inference.latency import BOUNDS_S, Latency
from edge_agent.inference.onnx_models.observation import TAILS
from edge_agent.inference.providers.kinds import CPU
from edge_agent.inference.serving import codec
from edge_agent.inference.serving.variants import benchmark
from edge_agent.inference.serving.variants.choice import (
    REFERENCE,
    Candidate,
    Measured,
    SelectionLimits,
    candidates,
    chosen,
    parity,
)
from protocol.bundle import BundleManifest, Variant, unpack
from protocol.errors import Refused
from protocol.tasks.task import Target
from tests.support.agent.bundle import bundle, tiny_onnx
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import TASK, inference, is_there, judged, other, probabilities, put, watched
from tests.support.python import python
from tests.support.services import until

INT8 = Candidate("int8", "model.int8.onnx", CPU)


def whole(header: dict, given_: dict) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in codec.encode(header, given_)))


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]).flatmap(
            lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
        ),
        max_size=4,
    )
)
def test_arrays_survive_the_way(given_):
    header, found = codec.decode(whole({"op": "x", "n": 1}, given_))
    assert header == {"op": "x", "n": 1}
    assert found.keys() == given_.keys()
    for name, array in given_.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array, equal_nan=array.dtype == np.float32)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_message_is_refused_or_another_message_and_nothing_else(data):
    message = bytearray(whole({"op": "x"}, {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        if codec.lengths(message) == len(message):
            codec.decode(memoryview(message))
    except Refused:
        pass


def test_lengths_are_bounded_before_anything_is_taken():
    for prefix in (b"\xff" * 8, b"\x01\0\0\0\0\0\0\xff"):
        with pytest.raises(Refused, match="at most"):
            codec.lengths(prefix)
    with pytest.raises(Refused, match="at most 4"):
        codec.lengths(b"\x01\0\0\0\x05\0\0\0", 4)


CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.agent.serving import inference, judged, watched
from edge_agent.inference.serving.zygote_client import ZygoteClient
before = len(os.listdir("/proc/self/task"))
zygote = ZygoteClient()
zygote.fork()
forked = zygote.pid
async def main():
    running = inference(zygote)
    seen = watched(running)
    task = asyncio.create_task(running.run(observe=seen.append))
    running.activate(await running.load(Path(sys.argv[2])))
    threads = len(os.listdir(f"/proc/{zygote.pid}/task"))
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (zygote.pid, running.model.pid)]
    oom = Path(f"/proc/{running.model.pid}/oom_score_adj").read_text().strip()
    running.enqueue(judged())
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    print(before, zygote.pid, forked is not None, threads, *names, oom, "onnxruntime" in sys.modules,
          seen[0].answers["label"].shape)
asyncio.run(main())
"""


def test_the_agent_forks_it_has_no_onnx_runtime_and_nothing_speaks_to_the_wheel_s_maker(tmp_path):
    folder, root = put(tmp_path / "a"), Path(__file__).resolve().parents[6]
    done = python("-c", CHILD, str(root), str(folder))
    said = done.stdout.split(maxsplit=8)
    assert said[:1] == ["1"], "a thread of a library: the agent could not fork"
    assert said[1] == "None", "it is gone at the end"
    assert said[2:] == ["True", "1", "lichen-models", "lichen-model", "1000", "False", "(3, 3)\n"]


async def test_a_model_answers_and_its_shadow_is_only_compared(tmp_path):
    lines = []

    def publish(batch, manifest):
        lines.append((len(batch), manifest.version))

    async with predicting(inference(output=tmp_path / "p.jsonl"), publish) as running:
        seen = watched(running)
        first = await running.load(put(tmp_path / "a"))
        running.activate(first)
        running.enqueue(judged())
        await until(lambda: seen)
        second = await running.load(put(tmp_path / "b", other()))
        running.shadow(running.model)
        running.activate(second)
        running.enqueue(judged())
        await until(lambda: len(seen) == 2)
        assert (seen[0].before, seen[0].digest) == (None, "a")
        now = seen[1]
        assert np.allclose(now.answers["label"], probabilities(judged(), 5.0), atol=1e-5)
        assert np.allclose(now.before["label"], probabilities(judged()), atol=1e-5)
        assert now.before_latency_s > 0
        assert now.before_manifest.version == 1
        assert (now.digest, now.count, now.y_B.tolist()) == ("b", 3, [0, 1, 2])
        assert lines == [(3, 1), (3, 2)]
        assert running.predictions == 6
        assert all(is_there(model.pid) for model in (first, second))
        gone = first.pid
        running.shadow(None)
        await until(lambda: not is_there(gone))
        running.activate(None)
        assert running.latency.count == running.model_latency.count == 6
        told = running.status()
        assert told["latency"]["count"] == 6
        assert json.dumps(told)
    written = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["version"] for line in written] == [1, 1, 1, 2, 2, 2]


async def test_it_is_told_when_the_shadow_was_asked_and_failed(tmp_path):
    async with predicting(inference()) as running:
        seen = watched(running)
        running.shadow(await running.load(put(tmp_path / "a")))
        running.activate(await running.load(put(tmp_path / "b", other())))
        strange = judged()
        for x in strange.windows.x.values():
            x[:] = np.nan
        running.enqueue(strange)
        await until(lambda: seen)
        assert "finite" in seen[0].error
        assert "finite" in seen[0].before_error
        running.enqueue(judged())
        await until(lambda: len(seen) == 2)
        assert (seen[1].error, seen[1].before_error) == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("slow", [True, False])
async def test_a_model_too_slow_for_its_windows_is_compared_all_the_same(tmp_path, monkeypatch, slow):
    async with predicting(inference()) as running:
        seen = watched(running)
        before = await running.load(put(tmp_path / "a"))
        running.shadow(before)
        running.activate(await running.load(put(tmp_path / "b", other())))
        tardy = running.model if slow else before
        predict = tardy.predict

        async def late(*asked):
            await asyncio.sleep(0.1)
            return await predict(*asked)

        monkeypatch.setattr(tardy, "predict", late)
        for _ in range(30):
            running.enqueue(judged(1))
        await until(lambda: len(seen) == 30, 20)
        compared = sum(one.before is not None for one in seen)
        assert compared == 30 if slow else compared < 30, "a slow shadow is left out, a quick one is not"


class Asked:
    """A question about a graph; models answer with the rows that they are made of."""

    count, since, y_B, read_NR = 1, 0.0, np.zeros(0, np.int64), None

    async def ask(self, model):
        return {TAILS: np.zeros((model.rows, 2), np.int64)}

    def accept(self, answers):
        self.count = len(answers[TAILS])

    def lines(self, *_, **__):
        return iter(())


@pytest.mark.parametrize(("before", "errors"), [(1, [1]), (0, [])])
async def test_a_model_that_answers_nothing_where_the_one_before_answers_has_failed(before, errors):
    running = inference()
    manifest = unpack(bundle(TASK))[0]
    new, old = (
        SimpleNamespace(digest=name, manifest=manifest, rows=n, failures=0, own=False, close=lambda: None)
        for name, n in (("b", 0), ("a", before))
    )
    seen = watched(running)
    running.shadow(old)
    running.activate(new)
    await running._take(Asked(), new, None, seen.append)
    assert [one.count for one in seen] == errors
    assert all("answers nothing" in one.error and not one.answers for one in seen)
    assert all(added(TrialMetrics(), one).errors == 1 for one in seen)
    await running.close()


async def test_back_to_the_model_before_takes_no_start(tmp_path):
    async with predicting(inference()) as running:
        seen = watched(running)
        steady, bad = [await running.load(put(tmp_path / "a")), None]
        running.activate(steady)
        bad = await running.load(put(tmp_path / "b", other()))
        running.shadow(steady)
        running.activate(bad)
        pid, gone = steady.pid, bad.pid
        running.activate(steady)
        running.shadow(None)
        running.enqueue(judged())
        await until(lambda: seen)
        assert (seen[0].digest, steady.pid) == ("a", pid)
        await until(lambda: not is_there(gone))


async def test_what_was_loaded_and_never_installed_ends_with_the_next(tmp_path):
    async with predicting(inference()) as running:
        unused = (await running.load(put(tmp_path / "a"))).pid
        used = await running.load(put(tmp_path / "b", other()))
        await until(lambda: not is_there(unused))
        assert is_there(used.pid)


async def test_more_windows_than_go_at_once_go_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_agent.inference.serving.served_kinds._MAX_CALL_BYTES", 8000)
    async with predicting(inference()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        running.enqueue(judged(50))
        await until(lambda: seen)
        assert np.allclose(seen[0].answers["label"], probabilities(judged(50)), atol=1e-5)


def two_variants(bias: float) -> bytes:
    """``int8`` is float32 with another bias: parity tells them apart, or not."""
    data = bundle(TASK)
    manifest, files = unpack(data)
    files["model.int8.onnx"] = tiny_onnx(TASK, bias=bias)
    variants = {"int8": Variant(file="model.int8.onnx", precision="int8")}
    from protocol.bundle import pack  # noqa: PLC0415 - beside unpack it reads as its inverse

    return pack(manifest.model_copy(update={"variants": variants}), files)


@pytest.mark.parametrize(("bias", "taken"), [(0.0, "int8"), (3.0, "float32")])
async def test_the_fastest_variant_that_agrees_is_taken_measured_once_and_kept(
    tmp_path, monkeypatch, bias, taken
):
    folder = put(tmp_path / "a", two_variants(bias))
    measured = []

    async def timed(model, _sample):
        measured.append(model._options.file)
        return {"model.onnx": 0.002, "model.int8.onnx": 0.001}[model._options.file]

    monkeypatch.setattr(benchmark, "_median_s", timed)
    async with predicting(inference()) as running:
        running.enqueue(judged(8))  # no model yet: these are what it is measured on
        model = await running.load(folder)
        assert model.choice["variant"] == taken
        assert (model.choice["windows"], model.choice["recorded"]) == (4, True)
        assert measured == ["model.onnx", "model.int8.onnx"]
        again = await running.load(folder)
        assert len(measured) == 2
        assert again.choice == model.choice
        running.activate(again)
        seen = watched(running)
        running.enqueue(judged())
        await until(lambda: seen)
        assert np.allclose(seen[0].answers["label"], probabilities(judged()), atol=1e-5)
    async with predicting(inference(min_agreement=0.5)) as running:
        await running.load(folder)
        assert len(measured) == 4, "under other conditions it is measured again"


async def test_a_choice_that_runs_no_more_gives_way_to_float32(tmp_path):
    folder = put(tmp_path / "a", two_variants(0.0))
    async with predicting(inference(variant="int8")) as running:
        assert (await running.load(folder)).choice["variant"] == "int8"
        kept = json.loads((folder / "choice.json").read_text())
        (folder / "choice.json").write_text(json.dumps(kept | {"recorded": True, "file": "model.int8.onnx"}))
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "model.int8.onnx").write_bytes(b"no model")
        del manifest["files"]["model.int8.onnx"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        model = await running.load(folder)
        assert model.choice["variant"] == "float32"
        assert "no longer runs" in model.choice["why"]
        (folder / "choice.json").write_text("{")
        assert "does not run here" in (await running.load(folder)).choice["why"]


def test_what_may_be_taken_is_what_the_settings_and_the_machine_allow():
    manifest = manifest_of()
    has = ["TensorrtExecutionProvider", "AzureExecutionProvider", CPU]
    every = candidates(manifest, InferSettings(), has)
    assert every[0] == REFERENCE
    assert [str(one) for one in every] == [
        "float32 on CPU",
        "float32 on Tensorrt",
        "int8 on CPU",
        "int8 on Tensorrt",
    ]
    assert candidates(manifest, InferSettings(variant="float32", providers=(CPU,)), has) == (REFERENCE,)
    assert candidates(manifest, InferSettings(variant="int8", providers=("NoSuch",)), has) == (
        REFERENCE,
        INT8,
    )


def test_a_variant_of_a_precision_that_only_a_newer_release_knows_is_left_aside():
    manifest = manifest_of()
    strange = {"int4": manifest.variants["int8"].model_copy(update={"precision": "int4"})}
    newer = manifest.model_copy(update={"variants": manifest.variants | strange})
    again = BundleManifest.model_validate_json(newer.model_dump_json())
    assert [str(one) for one in candidates(again, InferSettings(), [CPU])] == [
        "float32 on CPU",
        "int8 on CPU",
    ]


def manifest_of() -> BundleManifest:
    manifest, _ = unpack(bundle(TASK))
    return manifest.model_copy(
        update={"variants": {"int8": Variant(file="model.int8.onnx", precision="int8")}}
    )


@pytest.mark.parametrize(
    ("other_", "changes", "taken", "words"),
    [
        (Measured(INT8, 0.001, 1.0, 0.01), {}, INT8, "is taken"),
        (Measured(INT8, 0.00199, 1.0, 0.01), {}, REFERENCE, "not faster"),
        (Measured(INT8, 0.00199, 1.0, 0.01), {"variant": "int8"}, INT8, "is taken"),
        (Measured(INT8, 0.001, 0.9, 0.01), {}, REFERENCE, "agrees on 90.0%"),
        (Measured(INT8, 0.001, 0.9, 0.01), {"variant": "int8"}, REFERENCE, "agrees on 90.0%"),
        (Measured(INT8, 0.001, 0.9, 0.01), {"min_agreement": 0.9}, INT8, "is taken"),
        (Measured(INT8, 0.001, 1.0, 0.2), {}, REFERENCE, "off in the mean"),
        (Measured(INT8, None, why="no such operator"), {}, REFERENCE, "no such operator"),
    ],
)
def test_speed_counts_only_where_a_variant_says_the_same(other_, changes, taken, words):
    best, why = decided(other_, SelectionLimits(32, recorded=True, known={}), **changes)
    assert best == taken
    assert words in why


def decided(one: Measured, grounds: SelectionLimits, **changes):
    return chosen([Measured(REFERENCE, 0.002, 1.0, 0.0), one], InferSettings(**changes), grounds)


@pytest.mark.parametrize(
    ("windows", "recorded", "known", "agreement", "taken"),
    [
        (32, False, 0.999, 0.80, True),  # noise: no model is sure of it
        (32, False, 0.900, 1.00, False),
        (32, False, None, 0.97, False),  # nothing else is known
        (32, True, 0.999, 31 / 32, True),  # one of few is chance
        (32, True, 0.999, 30 / 32, False),
        (32, True, 0.900, 1.00, False),
        (100, True, 0.900, 0.99, True),  # enough windows of its own decide
        (100, True, 0.999, 0.98, False),
        (32, True, None, 31 / 32, False),
    ],
)
def test_agreement_is_judged_on_enough_windows_or_by_the_exporter_s_figure(
    windows, recorded, known, agreement, taken
):
    measured_ = {} if known is None else {"agreement": known}
    variant = Variant(file="model.int8.onnx", precision="int8", measured=measured_)
    manifest = manifest_of().model_copy(update={"variants": {"int8": variant}})
    grounds = SelectionLimits.of(manifest, windows, recorded)
    best, why = decided(Measured(INT8, 0.001, agreement, 0.01), grounds)
    assert best == (INT8 if taken else REFERENCE), why
    assert decided(Measured(INT8, 0.001, 1.0, 0.2), grounds)[0] == REFERENCE, "far off, on noise too"


async def test_it_is_measured_again_once_there_are_enough_windows(tmp_path, monkeypatch):
    folder, on = put(tmp_path / "a", two_variants(0.0)), []
    plain = benchmark.measure

    async def counted(*given_):
        on.append((len(given_[-1].present_NM), given_[-1].recorded))
        return await plain(*given_)

    monkeypatch.setattr(benchmark, "measure", counted)
    async with predicting(inference()) as running:
        await running.load(folder)
        running.enqueue(judged(4))
        await running.load(folder)
        running.enqueue(judged(4))
        await running.load(folder)
        for seed in range(24):
            running.enqueue(judged(4, seed))
        await running.load(folder)
        await running.load(folder)
    assert on == [(32, False), (4, True), (104, True)]


def test_the_windows_that_are_kept_for_measuring_are_few_and_small(monkeypatch):
    recent = benchmark.RecentWindows()
    for seed in range(100):
        recent.add(judged(8, seed))
    manifest = unpack(bundle(TASK))[0]
    assert len(recent.sample(manifest).present_NM) == 128
    one = sum(x[0].nbytes for x in judged(1).windows.x.values())
    monkeypatch.setattr(benchmark, "_KEPT_BYTES", 10 * one)
    recent.add(judged(8))
    assert len(recent.sample(manifest).present_NM) == 10


def test_parity_is_that_of_the_worst_target():
    targets = (
        Target(name="label", labels=("a", "b")),
        Target(name="speed", kind="regression", scale=10.0),
        Target(name="cam", kind="generation", modality="cam"),
    )
    manifest = manifest_of().model_copy(update={"targets": targets})
    said = {
        "label": np.array([[0.9, 0.1], [0.2, 0.8]], np.float32),
        "speed": np.array([1.0, 2.0], np.float32),
        "cam": np.zeros((2, 1, 4), np.float32),
    }
    assert parity(manifest, said, said) == (1.0, 0.0)
    off = said | {"speed": np.array([1.0, 7.0], np.float32)}
    assert parity(manifest, said, off) == (0.5, 0.25)
    off = said | {"label": said["label"][::-1]}
    assert parity(manifest, said, off)[0] == 0.0


def test_a_histogram_counts_and_never_grows():
    latency = Latency()
    assert latency.summary() == {"count": 0}
    for seconds, times in ((0.00005, 90), (0.004, 9), (60.0, 1)):
        latency.add(seconds, times)
    told = latency.summary()
    assert (told["count"], told["p50_ms"], told["p95_ms"], told["p99_ms"]) == (100, 0.1, 5.0, 5.0)
    assert (told["max_ms"], told["buckets_ms"]) == (60000.0, {"0.1": 90, "5": 9, "inf": 1})
    assert len(latency.counts) == len(BOUNDS_S) + 1


async def test_offered_without_end_nothing_grows(tmp_path):
    async with predicting(inference()) as running:
        running.activate(await running.load(put(tmp_path / "a")))
        for _ in range(300):
            running.enqueue(judged(1))
        assert running.status()["predictions_dropped"] == 300 - 64
        await until(lambda: running.predictions == 64)
        await asyncio.sleep(0)
