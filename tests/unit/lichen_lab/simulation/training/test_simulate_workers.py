import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import psutil
import pytest

from lichen_lab.simulation.data.streams import Evolving, Fixed, RoundStream
from lichen_lab.simulation.training import workers as simulated_workers
from lichen_lab.simulation.training.device import DeviceResult, VirtualDevice
from lichen_lab.simulation.training.runner import History, simulate
from lichen_lab.simulation.training.workers import LocalWorker, serve
from models.contract import Blobs, WindowSet
from models.data import window_set
from protocol.errors import Misconfigured, Transient
from tests.support.lab.simulated import Breaking, Counted, Unlabelled, task, windows
from tests.support.tasks import stream, task_toml

pytestmark = pytest.mark.long

LONG_S = 120.0


def wait_for(what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + LONG_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.05)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """All worker processes end with the test; those of other tests in this process are not its own."""
    resource_tracker.ensure_running()  # multiprocessing's own helper, which stays
    before = children()
    yield
    assert children() - before == set()


def fleet() -> dict[str, WindowSet | RoundStream]:
    streams: dict[str, WindowSet | RoundStream] = {
        f"d{i}": Evolving(windows(80, i), i, 40, 10, 0.5, 0.5, 0.5, 0.0) for i in range(2)
    }
    # idle in most rounds: what it keeps (error carry) must outlive them
    return {**streams, "d2": Unlabelled(windows(40, 4), (1, 3, 4))}


@pytest.fixture(scope="module")
def here() -> History:
    return simulate(task(), fleet(), windows(60, 50), 3, rounds=4, evaluate_every=2)


@pytest.mark.parametrize("workers", [2, 9])
def test_simulate_workers_give_the_same_bytes_as_one_process(here: History, workers: int) -> None:
    told: list[int] = []
    there = simulate(
        task(),
        fleet(),
        windows(60, 50),
        3,
        rounds=4,
        evaluate_every=2,
        workers=workers,
        progress=lambda record: told.append(record.round),
    )
    assert told == [1, 2, 3, 4]
    assert there.rounds == here.rounds
    assert list(there.rounds[0].accepted) == ["d0", "d1", "d2"]
    assert "no labelled windows" in there.rounds[1].refused["d2"]
    for blob, tensors in here.state.items():
        for name, values in tensors.items():
            assert (values == there.state[blob][name]).all(), name
    assert there.evaluation == here.evaluation


def test_simulate_a_stream_is_asked_once_a_round() -> None:
    asked: list[int] = []
    simulate(task(), {"d": Counted(windows(40, 1), asked)}, None, 0, rounds=3)
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(("how", "said"), [("killed", "SIGKILL"), ("exits", "status 7")])
def test_simulate_a_worker_that_ends_is_an_error_in_words(how: str, said: str) -> None:
    some: dict[str, WindowSet | RoundStream] = {
        "d0": windows(20, 0),
        "d1": Breaking(windows(20, 1), 2, how),
        "d2": windows(20, 2),
    }
    with pytest.raises(Transient, match=rf"worker process 2 of 2 \(devices d1\), in round 2 .*{said}"):
        simulate(task(), some, windows(20, 50), 3, rounds=3, workers=2)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [("misconfigured", Misconfigured, "key 'x' of file y"), ("torn", RuntimeError, "the reel is torn")],
)
def test_simulate_what_goes_wrong_in_a_worker_is_said_here(how: str, kind: type, said: str) -> None:
    some: dict[str, WindowSet | RoundStream] = {"d0": windows(20, 0), "d1": Breaking(windows(20, 1), 1, how)}
    with pytest.raises(kind, match=said):
        simulate(task(), some, None, 3, rounds=2, workers=2)


def test_simulate_a_worker_that_cannot_start_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_workers, "serve", os._exit)
    with pytest.raises(Transient, match="before round 1"):
        simulate(task(), {"d0": windows(2000, 0), "d1": windows(20, 1)}, None, 3, rounds=1, workers=2)


def test_simulate_an_error_here_ends_the_workers() -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(task(), fleet(), None, 3, rounds=4, workers=2, progress=stop)


@pytest.mark.parametrize("to", [signal.SIGINT, signal.SIGKILL])
def test_simulate_ctrl_c_and_a_killed_parent_leave_no_process(tmp_path: Path, to: signal.Signals) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        x = rng.standard_normal((400, 1, 16)).astype(np.float32)
        y = np.arange(400, dtype=np.int64) % 2
        ones = np.ones((400, 1))
        window_set.save(
            tmp_path / "data" / f"{name}.npz",
            WindowSet({"a": x}, ones.astype(np.bool_), ones.astype(np.float32), y),
        )
    command = [sys.executable, "-P", "-m", "lichen", "simulate", "--task", str(tmp_path / "task.toml")]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data"), "--workers", "2"],
        start_new_session=True,
        # Who runs the tests may ignore SIGINT (a background job, pytest-xdist), and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - takes no lock
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        parent = psutil.Process(process.pid)
        try:
            wait_for(lambda: len(parent.children(recursive=True)) >= 3, "two workers and their helper")
            below = parent.children(recursive=True)
            if to == signal.SIGKILL:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
            process.wait(LONG_S)
            wait_for(lambda: not any(p.is_running() for p in below), f"{below} live on")
            if to == signal.SIGINT:
                assert process.stderr is not None
                assert "Traceback" not in process.stderr.read()
                assert process.returncode != 0
        finally:
            process.kill()


TASK = task_toml(
    ("rest", "move"),
    "toy",
    streams={"a": stream(1, 10.0)},
    window={"length_s": 1.6, "stride_s": 0.8},
    network={"feature_dim": 4, "hidden_dim": 8, "encoders": {"a": {"width": 4, "depth": 1}}},
    config={"batch": 8},
    rounds={"count": 100_000},
)


class Answers:
    """Stands in for the place where devices are trained."""

    at_once = 1

    def deliver(self, device: VirtualDevice, state: Blobs, round_: int, made: object) -> DeviceResult:
        del state, made
        return DeviceResult(device.name, None, {}, f"round {round_}")


def test_simulate_a_worker_lets_those_work_that_take_part() -> None:
    ours, theirs = multiprocessing.Pipe()
    worker = threading.Thread(target=serve, args=(theirs,))
    worker.start()
    ours.send((Answers(), [[VirtualDevice(name, Fixed(windows(3, 0)))] for name in "abc"]))
    for round_, chosen in ((1, ("a", "c")), (2, ("b",))):
        ours.send(({}, round_, chosen))
        found = [ours.recv() for _ in chosen]
        assert [(one.device, one.why_not) for one in found] == [(name, f"round {round_}") for name in chosen]
    ours.send(None)
    assert set(ours.recv()) == {"a", "b", "c"}
    ours.close()
    worker.join(LONG_S)
    assert not worker.is_alive()


def test_simulate_in_one_process_too() -> None:
    crew = LocalWorker(Answers(), [VirtualDevice(name, Fixed(windows(3, 0))) for name in "abc"])  # type: ignore[arg-type]
    for chosen, wanted in ((("c", "a"), ["a", "c"]), (None, ["a", "b", "c"])):
        crew.start({}, 1, chosen)
        assert [one.device for one in crew.finish()] == wanted
