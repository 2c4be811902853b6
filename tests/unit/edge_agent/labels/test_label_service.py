"""The local interface over its real socket, on a real store and real model processes."""

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings, InferSettings
from edge_agent.inference.service import Inference
from edge_agent.labels import local_client, service
from edge_agent.labels.local_server import MAX_CONNECTIONS, LocalServer
from edge_agent.labels.requests import MAX_REQUEST, SOCKET, read_request
from edge_agent.labels.service import LabelService
from edge_agent.windows.collector import Collector
from edge_agent.windows.live.live_signal import MAX_POINTS, MAX_VIEWERS
from edge_agent.windows.window_labels import end_undo
from edge_agent.windows.window_sets import to_window_set
from models.data.streams.batches import SampleBatch
from protocol.errors import Refused, Transient
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from tests.support.agent.serving import TASK, judged, put
from tests.support.services import beside, until


@dataclass
class Device:
    socket: Path
    collector: Collector
    inference: Inference
    changed: Signal

    def add(self, count: int, seed: int = 0, y: int = -1, quality: float = 1.0) -> None:
        """Windows into the store; with ``y`` their class."""
        scored = judged(count, seed)
        windows = to_window_set(scored.windows, scored.quality)
        windows.y_B[:] = y
        windows.quality_BM[:] = quality
        assert self.collector.workspace is not None
        self.collector.workspace.store.add(windows, scored.windows.start_B)

    async def ask(self, **request: Any) -> dict[str, Any]:
        asked = read_request(json.dumps(request).encode())
        return await asyncio.to_thread(local_client.ask, self.socket, asked)


@asynccontextmanager
async def device(folder: Path, *, model: bool = False, **keys: Any) -> AsyncIterator[Device]:
    deep = folder / ("a-folder-with-a-long-name-" * 5)  # longer than a socket's address may be
    deep.mkdir()
    settings = AgentSettings(fleet="f", device="d", state_dir=folder, cache_dir=deep, **keys)
    clock, changed = SystemClock(), Signal()
    collector = Collector(
        settings, [], clock=clock, listener=lambda _: None, changed=Signal(), progress=Progress()
    )
    await collector.use(TASK)
    inference = Inference(InferSettings(), clock)
    labels = LabelService(collector, inference, clock, changed, settings.infer.min_quality)
    server = LocalServer(deep / SOCKET, labels, clock)
    async with beside(server.run, inference.run, forever=True):
        await until((deep / SOCKET).exists)
        await asyncio.sleep(0.05)
        if model:
            inference.activate(await inference.load(put(folder / "model")))
        yield Device(deep / SOCKET, collector, inference, changed)
    await collector.leave()


async def test_a_label_by_the_socket_is_in_the_store_and_undone(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        one.add(3)
        listed = await one.ask(do="windows")
        assert listed["labels"] == ["slow", "middle", "fast"]
        assert [entry["label"] for entry in listed["windows"]] == [None] * 3
        name = listed["windows"][1]["window"]
        given = await one.ask(do="label", window=name, label="fast", by="command")
        assert (given["label"], given["before"]) == ("fast", None)
        assert one.changed.is_set(), "the coordinator learns of the new count"
        assert one.collector.workspace.store.recent(9).y_B.tolist() == [2]
        undone = await one.ask(do="undo", window=name)
        assert (undone["label"], undone["before"]) == (None, "fast")
        with pytest.raises(Refused, match="no label to undo"):
            await one.ask(do="undo")


async def test_undo_ends_where_a_round_reads_the_windows(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        one.add(2)
        name = (await one.ask(do="windows"))["windows"][0]["window"]
        await one.ask(do="label", window=name, label="slow")
        await asyncio.to_thread(end_undo, one.collector.workspace.store)
        with pytest.raises(Refused, match="since the last round of training"):
            await one.ask(do="undo")


async def test_the_model_of_the_device_decides_what_is_proposed_and_why(tmp_path: Path) -> None:
    async with device(tmp_path, model=True) as one:
        one.add(40)
        one.add(5, seed=1, y=0)
        one.add(10, seed=2, quality=0.3)
        found = await one.ask(do="propose", count=10)
        assert found["no_prediction"] == ""
        assert len(found["windows"]) == 10
        for entry in found["windows"]:
            assert entry["label"] is None, "labelled windows are not asked for"
            assert min(entry["quality"].values()) >= 0.5, "nor those of bad quality"
            assert entry["reason"].startswith("the model ")
        chances = [entry["prediction"]["confidence"] for entry in found["windows"]]
        everything = await one.ask(do="windows", count=100)
        sure = [e["prediction"]["confidence"] for e in everything["windows"]]
        assert np.mean(chances[:3]) <= np.mean(sure) + 0.2
        skipped = found["windows"][0]["window"]
        await one.ask(do="skip", window=skipped)
        again = await one.ask(do="propose", count=20)
        assert skipped not in [entry["window"] for entry in again["windows"]]


async def test_predictions_are_asked_once_and_again_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device(tmp_path, model=True) as one:
        one.add(20)
        asked: list[int] = []
        model = one.inference.model
        predict = model.predict

        async def counted(x: Any, present_BM: Any, task: Any) -> Any:
            asked.append(len(present_BM))
            return await predict(x, present_BM, task)

        monkeypatch.setattr(model, "predict", counted)
        first = await one.ask(do="propose")
        assert asked == [16, 4], "a few at a time: live windows come between"
        assert await one.ask(do="propose") == first
        assert asked == [16, 4], "what is known is not asked again"
        monkeypatch.setattr(model, "digest", "another")
        await one.ask(do="windows", count=3)
        assert asked == [16, 4, 3]


async def test_without_a_model_there_are_proposals_and_the_reason_says_so(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        assert (await one.ask(do="propose"))["windows"] == []
        one.add(6)
        found = await one.ask(do="propose", count=4)
        assert len(found["windows"]) == 4
        assert found["no_prediction"] == "no model yet"
        assert "no model predicts yet" in found["windows"][0]["reason"]


async def test_a_window_is_shown_with_its_values(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        one.add(1)
        name = (await one.ask(do="windows"))["windows"][0]["window"]
        shown = await one.ask(do="show", window=name)
        acc = shown["signal"]["acc"]
        assert len(acc["v"]) == 3
        assert len(acc["v"][0]) == 128
        assert acc["step_s"] == 1 / 50
        with pytest.raises(Refused, match="not stored any more"):
            await one.ask(do="show", window="99-0123456789abcdef")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"do": "label", "window": "1-0123456789abcdef", "label": "fast"}, "is not stored any more"),
        ({"do": "label", "window": "../etc", "label": "fast"}, "is no name of a window"),
        (
            {"do": "label", "window": "1-0123456789abcdef", "label": "swim"},
            "its classes are slow, middle, fast",
        ),
        ({"do": "skip", "window": "1-0123456789abcdef"}, "is not stored any more"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_words(
    tmp_path: Path, request_: dict[str, str], words: str
) -> None:
    async with device(tmp_path) as one:
        with pytest.raises(Refused, match=words):
            await one.ask(**request_)


async def test_a_device_that_observes_says_why_there_is_nothing_to_label(tmp_path: Path) -> None:
    async with device(tmp_path, roles=("observe",)) as one:
        with pytest.raises(Refused, match=r"stores no windows .*store.enabled = true"):
            await one.ask(do="windows")


async def raw(one: Device, data: bytes) -> dict[str, Any]:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    with local_client.short_name(one.socket) as name:
        await asyncio.get_running_loop().sock_connect(sock, name)
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    writer.write(data)
    writer.write_eof()
    line = await reader.readline()
    writer.close()
    return dict(json.loads(line))


async def test_bad_requests_get_words_and_the_agent_goes_on(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        for data in (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100 + b"\n", b"{}\n", b""):
            assert "the request is wrong" in (await raw(one, data))["error"]
        huge = await raw(one, b"x" * (4 * MAX_REQUEST))
        assert f"at most {MAX_REQUEST} bytes" in huge["error"]
        assert (await one.ask(do="windows"))["windows"] == []


async def test_the_socket_is_the_users_own_and_of_bounded_use(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        assert stat.S_IMODE(one.socket.stat().st_mode) == 0o600
        held = []
        for _ in range(MAX_CONNECTIONS):
            sock = socket.socket(socket.AF_UNIX)
            with local_client.short_name(one.socket) as name:
                sock.connect(name)
            held.append(sock)
        await asyncio.sleep(0.1)
        with pytest.raises(Refused, match="programs talk to this agent already"):
            await one.ask(do="windows")
        for sock in held:
            sock.close()
        await asyncio.sleep(0.1)
        assert (await one.ask(do="windows"))["windows"] == []
    assert not one.socket.exists()


async def test_a_refusal_that_came_before_the_request_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> socket.socket:
        client, agent = socket.socketpair()
        agent.sendall(b'{"error": "32 programs talk to this agent already", "kind": "refused"}\n')
        agent.close()
        return client

    monkeypatch.setattr(local_client, "_connected", refused)
    with pytest.raises(Refused, match="programs talk to this agent already"):
        local_client.ask(tmp_path / SOCKET, read_request(b'{"do": "windows"}'))
    with pytest.raises(Refused, match="programs talk to this agent already"):
        await anext(local_client.live(tmp_path / SOCKET))


async def test_an_agent_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(Transient, match="does it run"):
        await asyncio.to_thread(local_client.ask, tmp_path / SOCKET, read_request(b'{"do": "windows"}'))
    (tmp_path / SOCKET).touch()
    with pytest.raises(Transient, match="does not answer"):
        await asyncio.to_thread(local_client.ask, tmp_path / SOCKET, read_request(b'{"do": "windows"}'))


def samples(count: int, channels: int = 3) -> SampleBatch:
    t = np.arange(count) / 50
    return SampleBatch("acc", t, np.ones((count, channels), np.float32))


async def test_samples_reach_those_who_look_and_are_kept_for_nobody_else(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        live = one.collector.live
        live.feed(samples(10))
        async with aclosing(local_client.live(one.socket)) as messages:
            assert (await anext(messages))["samples"] == {}
            live.feed(samples(10_000))
            live.judged(judged(2))
            message = await anext(messages)
            assert len(message["samples"]["acc"]["t"]) <= MAX_POINTS
            assert len(message["samples"]["acc"]["v"]) == 3
            assert [w["quality"]["acc"]["score"] for w in message["windows"]] == [1, 1]
        await until(lambda: not live._viewers)


async def test_a_viewer_that_does_not_read_costs_bounded_memory(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        with one.collector.live.viewer() as viewer:
            for turn in range(2000):
                viewer.feed(samples(100, channels=3 + turn % 2 * (turn > 1990)), None)
                viewer.judged(judged(1))
            taken = viewer.take()
            assert len(taken["windows"]) <= 16
            assert len(taken["samples"]["acc"]["t"]) <= MAX_POINTS


async def test_only_so_many_may_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_TICK_S", 0.01)
    async with device(tmp_path) as one:
        streams = [local_client.live(one.socket) for _ in range(MAX_VIEWERS + 1)]
        for stream in streams[:-1]:
            await anext(stream)
        with pytest.raises(Refused, match="close one"):
            await anext(streams[-1])
        for stream in streams:
            await stream.aclose()
        await until(lambda: not one.collector.live._viewers)


async def test_a_stale_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        left = one.socket
    sock = socket.socket(socket.AF_UNIX)
    with local_client.short_name(left) as name:
        sock.bind(name)
    sock.close()
    clock = SystemClock()
    labels = LabelService(one.collector, one.inference, clock, Signal(), 0.0)
    async with beside(LocalServer(left, labels, clock).run, forever=True):
        await asyncio.sleep(0.1)
        with pytest.raises(Transient, match="no task on windows"):
            await one.ask(do="windows")
