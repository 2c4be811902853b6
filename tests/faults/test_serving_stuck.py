"""A model's process that does not read: whoever asks is told in time, and nothing is left at the loop."""

import asyncio
import os
import signal
import socket

import numpy as np
import pytest

from edge_agent.inference.serving import zygote_client
from edge_agent.inference.serving.channel import Channel
from edge_agent.inference.serving.host import ChannelClosed
from edge_agent.inference.serving.zygote_client import ZygoteClient
from tests.support.agent.serving import inference, is_there, judged, other, probabilities, put, watched
from tests.support.services import until

LARGE = {"x": np.zeros(4_000_000, np.float32)}


async def test_a_question_that_nobody_reads_is_given_up_in_time():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs, pytest.raises(ChannelClosed, match="not answered"):
        async with asyncio.timeout(10):
            await channel.ask({"op": "x"}, LARGE, 0.1)
    # The number of the closed socket is given to the next one, which must find the loop free of the old.
    again, other = socket.socketpair()
    with other:
        next_one = Channel(again)
        asking = asyncio.ensure_future(next_one.ask({"op": "x"}, LARGE, 10))
        await asyncio.sleep(0.05)
        other.close()
        with pytest.raises(ChannelClosed, match="ended"):
            await asyncio.wait_for(asking, 10)


async def test_a_question_that_is_called_off_while_it_is_sent_leaves_nothing():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        asking = asyncio.ensure_future(channel.ask({"op": "x"}, LARGE, 60))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, 10)
        assert "cancelled" in channel.broken
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_process_that_is_stopped_before_it_reads_a_large_batch_costs_that_batch(tmp_path):
    infer = inference(timeout_s=0.5)
    seen = watched(infer)
    service = asyncio.ensure_future(infer.run(observe=seen.append))
    try:
        infer.activate(await infer.load(put(tmp_path / "a")))
        os.kill(infer.model.pid, signal.SIGSTOP)
        large = judged(2000)
        infer.enqueue(large)
        await until(lambda: seen, 20)
        assert "not answered" in seen[0].error
        infer.enqueue(small := judged(2))
        await until(lambda: len(seen) > 1, 20)
        assert np.allclose(seen[1].answers["label"], probabilities(small), atol=1e-5)
    finally:
        service.cancel()
        await asyncio.wait([service], timeout=20)


async def test_one_death_of_what_loads_onnx_runtime_does_not_put_inference_off(tmp_path):
    zygote = ZygoteClient()
    infer = inference(zygote)
    try:
        assert await infer.ready() == ""
        os.kill(zygote.pid, signal.SIGKILL)
        assert await infer.ready() == ""
        assert infer.available
        await infer.load(put(tmp_path / "a"))
    finally:
        await infer.close()


async def test_what_forks_models_and_does_not_answer_is_ended_and_another_answers(monkeypatch):
    zygote = ZygoteClient()
    try:
        assert (await zygote.ready()).why == ""
        model, _ = await zygote.channel()
        stuck = zygote.pid
        os.kill(stuck, signal.SIGSTOP)
        monkeypatch.setattr(zygote_client, "_TIMEOUT_S", 0.2)
        assert await zygote.exit_status(model) is None
        assert not is_there(stuck), "a late answer of its would be taken for the answer to the next question"
        await until(lambda: not is_there(model), 20)
        assert (await zygote.ready()).why == ""
        assert zygote.pid != stuck
    finally:
        await zygote.aclose()


@pytest.mark.parametrize("then", ["the end", "another model"])
async def test_a_process_that_hangs_ends_with_its_batch_or_the_agent(tmp_path, then):
    infer = inference(timeout_s=60 if then == "the end" else 0.5)
    seen = watched(infer)
    service = asyncio.ensure_future(infer.run(observe=seen.append))
    infer.activate(await infer.load(put(tmp_path / "a")))
    after = await infer.load(put(tmp_path / "b", other()))
    hung, forks = infer.model.pid, infer._zygote.pid
    os.kill(hung, signal.SIGSTOP)
    infer.enqueue(judged(2000))
    await asyncio.sleep(0.1)
    try:
        if then == "another model":
            infer.activate(after)
            infer.enqueue(judged())
            await until(lambda: len(seen) > 1, 20)
            assert (seen[0].digest, seen[1].digest, seen[1].error) == ("a", "b", "")
            await until(lambda: not is_there(hung), 20)
    finally:
        service.cancel()
        await asyncio.wait([service], timeout=20)
    assert service.done()
    await until(lambda: not any(is_there(pid) for pid in (hung, forks, after.pid)), 20)
