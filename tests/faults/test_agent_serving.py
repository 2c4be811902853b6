"""A model's process may be killed, hang, lie or eat memory: it costs a batch, and the agent goes on."""

import asyncio
import os
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_agent.inference.service import MAX_DEATHS
from edge_agent.inference.serving.codec import send
from edge_agent.inference.serving.zygote_client import ZygoteClient
from protocol.errors import Reason, Refused, Transient
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import (
    Liar,
    inference,
    is_there,
    judged,
    other,
    own_bytes,
    probabilities,
    put,
    watched,
)
from tests.support.services import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")


async def test_a_process_killed_in_the_middle_of_a_batch_costs_that_batch(tmp_path):
    async with predicting(inference()) as running:
        model, seen = await running.load(put(tmp_path / "a")), watched(running)
        running.activate(model)
        first = model.pid
        os.kill(first, signal.SIGSTOP)
        running.enqueue(judged())
        await asyncio.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        await until(lambda: seen)
        assert "SIGKILL" in seen[0].error
        assert (seen[0].count, seen[0].answers, running.predictions) == (3, {}, 0)
        running.enqueue(judged())
        await until(lambda: len(seen) == 2)
        assert not seen[1].error
        assert np.allclose(seen[1].answers["label"], probabilities(judged()), atol=1e-5)
        assert model.pid != first
        assert running.model is model


async def test_a_process_that_died_while_idle_costs_nothing(tmp_path):
    async with predicting(inference()) as running:
        model, seen = await running.load(put(tmp_path / "a")), watched(running)
        running.activate(model)
        os.kill(model.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
        running.enqueue(judged())
        await until(lambda: seen)
        assert not seen[0].error


async def test_a_process_that_hangs_is_ended_after_its_time(tmp_path):
    async with predicting(inference(timeout_s=0.3)) as running:
        model, seen = await running.load(put(tmp_path / "a")), watched(running)
        running.activate(model)
        first = model.pid
        os.kill(first, signal.SIGSTOP)
        running.enqueue(judged())
        await until(lambda: seen)
        assert "has not answered in 0.3 s" in seen[0].error
        assert seen[0].latency_s >= 0.3
        await until(lambda: not is_there(first))
        running.enqueue(judged())
        await until(lambda: len(seen) == 2)
        assert not seen[1].error


async def test_the_process_that_forks_may_be_killed(tmp_path):
    zygote = ZygoteClient()
    async with predicting(inference(zygote)) as running:
        model, seen = await running.load(put(tmp_path / "a")), watched(running)
        running.activate(model)
        gone = zygote.pid, model.pid
        os.kill(zygote.pid, signal.SIGKILL)
        await until(lambda: not is_there(gone[1]), 5)
        for _ in range(2):  # at most one batch is lost on the way
            before = len(seen)
            running.enqueue(judged())
            await until(lambda before=before: len(seen) > before)
        assert not seen[-1].error
        assert (zygote.pid, model.pid) != gone
    assert not is_there(zygote.pid)


async def test_three_deaths_in_a_row_end_it_with_words_and_another_model_may_come(tmp_path):
    async with predicting(inference()) as running:
        folder = put(tmp_path / "a")
        model, seen = await running.load(folder), watched(running)
        running.activate(model)
        (folder / "model.onnx").unlink()
        os.kill(model.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
        for k in range(MAX_DEATHS):
            running.enqueue(judged())
            await until(lambda k=k: len(seen) == k + 1)
        # the first batch may still have reached the process that was being killed
        assert all("model.onnx" in one.error for one in seen[1:])
        await until(lambda: running.model is None)
        assert "3 times in a row" in running.disabled_reason
        running.enqueue(judged())
        running.activate(await running.load(put(tmp_path / "b", other())))
        running.enqueue(judged())
        await until(lambda: running.predictions)
        assert (len(seen), running.disabled_reason) == (MAX_DEATHS + 1, "")


def say(header: dict, arrays: dict):
    return lambda sock: send(sock, header, arrays)


LIES = {
    "bytes of no kind": (lambda sock: sock.send(b"\xff" * 64), "at most"),
    "a header that is none": (
        lambda sock: sock.send(struct.pack("<II", 3, 0) + b"\xff\xff\xff"),
        "invalid message",
    ),
    "no header": (lambda sock: sock.send(struct.pack("<II", 0, 0)), "invalid message"),
    "half a message and the end": (lambda sock: (sock.send(b"\x10\0\0\0"), sock.shutdown(1)), "has ended"),
    "an array of another shape": (say({}, {"label": np.zeros((3, 2), np.float32)}), "nonsense"),
    "another type": (say({}, {"label": np.zeros((3, 3), np.int64)}), "at most"),
    "flat bytes": (say({}, {"label": np.zeros((3, 3), np.uint8)}), "nonsense"),
    "another target": (say({}, {"lable": np.zeros((3, 3), np.float32)}), "nonsense"),
    "numbers that are none": (say({}, {"label": np.full((3, 3), np.nan, np.float32)}), "finite"),
    "a refusal": (say({"refused": "malformed", "words": "it does not run"}, {}), "it does not run"),
    "more than can be taken": (say({}, {"label": np.zeros((300, 300), np.float32)}), "at most"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_process_that_talks_nonsense_costs_the_batch(tmp_path, lie):
    talk, words = LIES[lie]
    async with predicting(inference(Liar(talk), timeout_s=2)) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        running.enqueue(judged())
        await until(lambda: seen)
        assert words in seen[0].error
        assert running.predictions == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n", "dies with SIGILL"),
        ("raise ImportError(\"No module named 'onnxruntime'\")\n", "is not installed"),
        ("raise ImportError('libgomp is missing')\n", "libgomp is missing"),
    ],
)
async def test_where_onnx_runtime_does_not_work_inference_is_off_with_words(
    tmp_path, monkeypatch, source, words
):
    (tmp_path / "broken" / "onnxruntime").mkdir(parents=True)
    (tmp_path / "broken" / "onnxruntime" / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    async with predicting(inference()) as running:
        assert words in await running.ready()
        assert (running.available, words in running.disabled_reason) == (False, True)
        with pytest.raises(Transient, match=words):
            await running.load(put(tmp_path / "a"))


async def test_where_no_process_can_be_had_the_agent_lives(tmp_path):
    async with predicting(inference(ZygoteClient(python=str(tmp_path / "no-python")))) as running:
        assert "no process can be started" in await running.ready()
        assert not running.available


async def test_a_model_whose_process_dies_of_it_is_refused(tmp_path):
    class Deadly(Liar):
        def _live(self, sock):
            sock.close()

    async with predicting(inference(Deadly(lambda _: None))) as running:
        with pytest.raises(Refused, match="it has ended") as refused:
            await running.load(put(tmp_path / "a"))
        assert refused.value.reason is Reason.MALFORMED


async def test_a_load_that_is_called_off_leaves_no_process(tmp_path):
    zygote = ZygoteClient()
    async with predicting(inference(zygote)) as running:
        assert await running.ready() == ""
        before = set(_children(zygote.pid))
        for pause in (0.0, 0.005, 0.02):
            task = asyncio.create_task(running.load(put(tmp_path / "a")))
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.wait([task])
        await until(lambda: {pid for pid in _children(zygote.pid) if is_there(pid)} == before)
        assert (await running.load(put(tmp_path / "a"))).pid


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in found.split()]


@pytest.mark.long
async def test_two_hundred_swaps_take_no_memory(tmp_path):
    zygote, datas = ZygoteClient(), [put(tmp_path / "a"), put(tmp_path / "b", other())]

    async def swap(times: int) -> list[int]:
        seen.clear()
        for k in range(times):
            model = await running.load(datas[k % 2])
            running.shadow(running.model)
            running.activate(model)
            running.enqueue(judged(1))
            await until(lambda k=k: len(seen) > k)
            running.shadow(None)
        return [own_bytes(pid) for pid in (os.getpid(), zygote.pid, running.model.pid)]

    async with predicting(inference(zygote)) as running:
        seen = watched(running)
        before = await swap(20)
        after = await swap(180)
        assert not [one.error for one in seen if one.error]
        await until(lambda: [pid for pid in _children(zygote.pid) if is_there(pid)] == [running.model.pid])
        assert all(late < 1.1 * soon for soon, late in zip(before, after, strict=True)), (before, after)


async def test_at_the_end_no_process_is_started_any_more(tmp_path):
    zygote = ZygoteClient()
    async with predicting(inference(zygote)) as running:
        assert await running.ready() == ""
        await running.close()
        with pytest.raises(Transient, match="the agent ends"):
            await running.load(put(tmp_path / "a"))
    assert zygote.pid is None


ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.agent.serving import inference
from edge_agent.inference.serving.zygote_client import ZygoteClient
zygote = ZygoteClient()
if sys.argv[3] == "forked":
    zygote.fork()
async def main():
    running = inference(zygote)
    model = await running.load(Path(sys.argv[2]))
    print(zygote.pid, model.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["forked", "started"])
async def test_an_agent_that_is_killed_leaves_no_process(tmp_path, how):
    folder = put(tmp_path / "a")
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", KILLED, str(ROOT), str(folder), how), stdout=asyncio.subprocess.PIPE
    )
    try:
        pids = [int(pid) for pid in (await agent.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(is_there(pid) for pid in pids)
    finally:
        agent.kill()
        await agent.communicate()
    await until(lambda: not any(is_there(pid) for pid in pids))
