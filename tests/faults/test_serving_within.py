"""Models in the agent's own process: tried in another one before, and what they do then costs batches."""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_agent.features.feature_process import FeatureProcess
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.inference.service import MAX_DEATHS
from edge_agent.inference.serving import in_process
from edge_agent.inference.serving.model_server import ModelServer
from edge_agent.inference.serving.zygote_client import ZygoteClient
from protocol.errors import Refused, Transient
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import (
    TASK,
    InThreads,
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


def within_agent(zygote: ZygoteClient | None = None, **changes):
    return inference(InThreads() if zygote is None else zygote, isolation="none", **changes)


class Patched:
    """Models of this process whose ``predict`` first does something; those that are only tried do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first) -> None:
        self.threads: list[str] = []
        whole = LoadedModel.predict

        def predict(model, x, present_BM, columns):
            if getattr(model, "is_within", False):
                self.threads.append(threading.current_thread().name)
                first(len(self.threads))
            return whole(model, x, present_BM, columns)

        opened = ModelServer.open

        def opening(servant, header, given):
            answer = opened(servant, header, given)
            if servant._model is not None and threading.current_thread().name == "lichen-model":
                servant._model.is_within = True
            return answer

        monkeypatch.setattr(LoadedModel, "predict", predict)
        monkeypatch.setitem(within_do(), "open", opening)


def within_do():
    from edge_agent.inference.serving import model_server as servant  # noqa: PLC0415 - its table is private, and patched here alone

    return servant._DO


async def answered(running, seen, count=1):
    before = len(seen)
    running.enqueue(judged(count))
    await until(lambda: len(seen) > before)
    return seen[-1]


async def test_it_answers_in_the_agent_and_the_processes_that_tried_it_go(tmp_path):
    before = set(psutil.Process().children(recursive=True))
    zygote = ZygoteClient(idle_s=60)
    async with predicting(within_agent(zygote)) as running:
        seen = watched(running)
        assert await running.ready() == ""
        first = await running.load(put(tmp_path / "a"))
        tried = zygote.pid
        assert first.pid is None
        assert is_there(tried)
        zygote._idle_s = 0.2
        zygote._arm()
        running.activate(first)
        said = (await answered(running, seen, 3)).answers["label"]
        assert np.allclose(said, probabilities(judged()), atol=1e-5)
        await until(lambda: not is_there(tried))
        assert zygote.pid is None
        await until(lambda: not set(psutil.Process().children(recursive=True)) - before)
        second = await running.load(put(tmp_path / "b", other()))  # another process tries it
        running.shadow(running.model)
        running.activate(second)
        now = await answered(running, seen, 3)
        assert np.allclose(now.answers["label"], probabilities(judged(), 5.0), atol=1e-5)
        assert np.allclose(now.before["label"], probabilities(judged()), atol=1e-5)
        assert (await answered(running, seen)).latency_s > 0
        await until(lambda: zygote.pid is None)


async def test_a_process_that_tries_rests_only_when_nobody_needs_it():
    zygote = ZygoteClient(idle_s=0.1)
    features = FeatureProcess(zygote)
    with pytest.raises(Refused):
        await features.open(b"no graph", 1)  # it stays open: a next round may ask it
    forks = zygote.pid
    await asyncio.sleep(0.4)
    assert is_there(forks)
    features.close()
    await until(lambda: not is_there(forks))
    with pytest.raises(Refused):
        await features.open(b"no graph", 1)
    assert zygote.pid != forks
    features.close()
    await zygote.aclose()


async def test_a_model_that_kills_its_process_never_comes_into_the_agent(tmp_path, monkeypatch):
    class Deadly(Liar):
        def _live(self, sock):
            sock.close()

    opened = []
    monkeypatch.setattr(in_process, "InProcessChannel", lambda: opened.append("in the agent"))
    async with predicting(within_agent(Deadly(lambda _: None))) as running:
        with pytest.raises(Refused, match="it has ended"):
            await running.load(put(tmp_path / "a"))
        assert not opened


async def test_a_quick_model_answers_at_once_and_a_slow_one_in_a_thread(tmp_path, monkeypatch):
    pause = [0.0]
    made = Patched(monkeypatch, lambda _: time.sleep(pause[0]))
    async with predicting(within_agent()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        assert not (await answered(running, seen)).error
        monkeypatch.setattr(in_process, "QUICK_S", 1e9)  # whatever other work takes of this machine
        assert not (await answered(running, seen)).error
        monkeypatch.setattr(in_process, "QUICK_S", 0.005)
        pause[0] = 0.2
        await answered(running, seen)  # the first that is slow may still be on the loop
        beats = 0

        async def beating():
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beat = asyncio.create_task(beating())
        assert not (await answered(running, seen)).error
        beat.cancel()
    assert made.threads[0] == made.threads[-1] == "lichen-model"
    assert made.threads[1] == "MainThread"
    assert beats > 3, "sensors and the broker are heard while a slow model runs"


async def test_a_large_batch_of_a_quick_model_goes_to_a_thread(tmp_path, monkeypatch):
    made = Patched(monkeypatch, lambda _: None)
    async with predicting(within_agent()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        await answered(running, seen)
        running.model._channel._row_s = 0.001
        await answered(running, seen, 50)
    assert made.threads == ["lichen-model", "lichen-model"]


async def test_one_that_does_not_answer_in_time_costs_its_batch_and_then_itself(tmp_path, monkeypatch):
    go_on = threading.Event()
    Patched(monkeypatch, lambda count: count > 1 and go_on.wait(30))
    async with predicting(within_agent(timeout_s=0.2)) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        assert not (await answered(running, seen)).error
        running.model._channel._row_s = 1.0
        for _ in range(MAX_DEATHS):
            assert "the model: it has not answered in 0.2 s" in (await answered(running, seen)).error
        await until(lambda: running.model is None)
        assert "3 times in a row" in running.disabled_reason
        go_on.set()
        running.activate(await running.load(put(tmp_path / "b", other())))
        assert not (await answered(running, seen)).error


async def test_one_that_fails_costs_the_batch_and_is_opened_anew(tmp_path, monkeypatch):
    def fails(count):
        if count == 2:
            raise KeyError("what nobody thought of")

    Patched(monkeypatch, fails)
    async with predicting(within_agent()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        errors = [(await answered(running, seen)).error for _ in range(3)]
        assert "it failed: KeyError" in errors[1]
        assert (errors[0], errors[2]) == ("", "")


async def test_ended_in_the_middle_of_a_batch_nothing_speaks_to_a_loop_that_is_gone(tmp_path, monkeypatch):
    go_on, under_way = threading.Event(), threading.Event()
    Patched(monkeypatch, lambda _: (under_way.set(), go_on.wait(30)))
    async with predicting(within_agent()) as running:
        running.activate(await running.load(put(tmp_path / "a")))
        running.enqueue(judged())
        await until(under_way.is_set)
    go_on.set()
    with contextlib.suppress(StopIteration):
        next(t for t in threading.enumerate() if t.name == "lichen-model").join(5)


@pytest.mark.long
async def test_two_hundred_swaps_within_take_no_memory(tmp_path):
    folders = [put(tmp_path / "a"), put(tmp_path / "b", other())]

    async def swap(times: int) -> int:
        for k in range(times):
            running.shadow(running.model)
            running.activate(await running.load(folders[k % 2]))
            assert not (await answered(running, seen)).error
            running.shadow(None)
        return own_bytes(os.getpid())

    async with predicting(within_agent(ZygoteClient())) as running:
        seen = watched(running)
        before = await swap(20)
        after = await swap(180)
        assert after < 1.1 * before, (before, after)


async def test_it_does_not_rest_just_as_a_process_was_forked():
    zygote = ZygoteClient(idle_s=60)
    assert (await zygote.ready()).why == ""
    forks = zygote.pid
    asked = asyncio.create_task(zygote.channel())
    await asyncio.sleep(0)  # it is under way,
    await asyncio.sleep(0)
    zygote._timer.cancel()
    zygote._idle()  # and now the time is up that the question before it set
    pid, channel = await asked
    await zygote._resting
    assert is_there(forks)
    assert is_there(pid)
    channel.close()
    zygote.end(pid)
    await zygote.aclose()


async def test_a_system_without_another_thread_costs_batches_and_not_the_agent(tmp_path, monkeypatch):
    start, lacking = threading.Thread.start, [False]

    def starting(thread):
        if lacking[0] and thread.name == "lichen-model":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    async with predicting(within_agent()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        lacking[0] = True
        assert "no thread to run the model in" in (await answered(running, seen)).error
        with pytest.raises(Transient, match="no thread"):  # not held against the bundle
            await running.load(put(tmp_path / "b"))
        lacking[0] = False
        assert not (await answered(running, seen)).error


async def test_a_run_that_looks_for_own_tensors_is_in_a_thread(tmp_path, monkeypatch):
    made = Patched(monkeypatch, lambda _: None)
    monkeypatch.setattr(in_process, "QUICK_S", 1e9)
    async with predicting(within_agent()) as running:
        seen = watched(running)
        running.activate(await running.load(put(tmp_path / "a")))
        await answered(running, seen)
        await running.model.use(TASK)  # as for each batch, where a model has tensors to be replaced
        await answered(running, seen)
    assert made.threads == ["lichen-model", "lichen-model"]


async def test_a_process_that_is_being_started_when_the_agent_ends_is_not_left_behind():
    before = set(psutil.Process().children(recursive=True))
    zygote = ZygoteClient()
    asking = asyncio.create_task(zygote.ready())
    while not zygote._starting.locked():  # noqa: ASYNC110 - a start is shorter than any pause
        await asyncio.sleep(0)
    asking.cancel()
    await zygote.aclose()
    assert not set(psutil.Process().children(recursive=True)) - before
