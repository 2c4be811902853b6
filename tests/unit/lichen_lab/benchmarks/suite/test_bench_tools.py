import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from paho.mqtt import client as paho

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.suite import wire_bytes
from lichen_lab.benchmarks.suite.coordinator import fold_memory
from lichen_lab.benchmarks.suite.spar import ALONE, PROTOTYPES, SparOutcome, dealt, rows_of
from lichen_lab.benchmarks.support import fold_child as _fold_child
from lichen_lab.benchmarks.support import timed_worker
from lichen_lab.benchmarks.support.fleet import ProcessFleet, cpu_seconds, noise_recording
from lichen_lab.benchmarks.support.packet_bytes import publish_bytes
from lichen_lab.benchmarks.support.tasks import demo_task, noise_windows
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from lichen_lab.simulation.processes.testbed import lichen
from models.data import window_set
from models.data.streams.recording import read
from models.registry import method
from models.worker import job_folder
from protocol.errors import Transient
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window
from tests.support.python import python


def small_task() -> Task:
    return Task(
        name="small",
        labels=("a", "b"),
        modalities=(Modality(name="m", channels=2, rate_hz=20.0),),
        window=Window(length_s=0.8, stride_s=0.4),
        network=Network(encoders={"m": Encoder(width=4, depth=1)}, feature_dim=4, hidden_dim=8),
        config={"batch": 8},
    )


@pytest.mark.parametrize(
    ("payload", "length_bytes"), [(0, 1), (100, 1), (128, 2), (20_000, 3), (3_000_000, 4)]
)
def test_bench_publish_bytes_are_those_of_the_standard(payload: int, length_bytes: int) -> None:
    # type, remaining length, topic with its length, packet identifier, no properties, payload
    assert publish_bytes("a/b", payload) == 1 + length_bytes + 2 + 3 + 2 + 1 + payload


def _keep(sent: list[bytes], _kind: int, packet: bytes, *_: object) -> int:
    sent.append(bytes(packet))
    return 0


def test_bench_publish_bytes_agree_with_paho() -> None:
    for payload in (b"", b"x" * 127, b"x" * 70_000):
        link = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        sent: list[bytes] = []
        link._packet_queue = partial(_keep, sent)  # type: ignore[method-assign]
        link._sock = socket.socket()
        link._send_publish(1, b"lichen/v1/f/d/x/up/update", payload, 1)
        link._sock.close()
        link._sock = None
        assert len(sent[0]) == publish_bytes("lichen/v1/f/d/x/up/update", len(payload))


def test_bench_a_large_update_counts_its_pointer_and_every_chunk_header() -> None:
    small, large = wire_bytes.message_bytes(b"x" * 65536), wire_bytes.message_bytes(b"x" * 65537)
    assert 65536 < small < 65536 + 100
    assert 65537 + 2 * 100 < large < 65537 + 2 * 200 + 300


def test_bench_noise_windows_and_recordings_fit_their_task(tmp_path: Path) -> None:
    task = demo_task()
    window_set.check(noise_windows(task, 9), task)
    cut = windows_of_recording(task, read(noise_recording(tmp_path / "r.npz", task, 70)))
    assert 70 <= len(cut) <= 75
    assert cut.present_BM.all()
    assert 0.85 < (cut.y_B >= 0).mean() < 1


@pytest.mark.long
def test_bench_fold_counts_every_update_and_its_child_loads_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_memory, "noise_windows", lambda task, _count: noise_windows(task, 12))
    fold_memory.fill_journal(tmp_path, small_task(), 5)
    report = fold_memory._folded(tmp_path, 5)
    assert report["updates"] == 5
    assert report["peak"] >= report["before"] > 20e6
    with pytest.raises(Transient, match="folding process ended with status"):
        fold_memory._folded(tmp_path / "nowhere", 5)
    code = f"import sys, {_fold_child.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=60).returncode == 0


def test_bench_peak_is_this_programs_own_not_its_parents() -> None:
    ballast = np.ones(30_000_000)
    code = f"from {_fold_child.__name__} import peak_bytes; print(peak_bytes())"
    done = python("-c", code)
    assert int(done.stdout) < ballast.nbytes


@pytest.mark.long
def test_bench_the_timed_worker_does_the_job_and_writes_its_cpu_seconds(tmp_path: Path) -> None:
    task, folder, log = small_task(), tmp_path / "job", tmp_path / "train.log"
    folder.mkdir()
    state = method(task.method).client().initial(task, 0)
    job_folder.write_train(folder, job_folder.TrainJob(task, "d", 1, 0), noise_windows(task, 16), state, {})
    environment = os.environ | {timed_worker.VARIABLE: str(log)}
    command = [sys.executable, "-P", "-m", timed_worker.__name__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert job_folder.read_result(folder).metrics["windows"] == 16
    line = json.loads(log.read_text())
    assert line["round"] == 1
    assert 0 < line["train_cpu_s"] < line["process_cpu_s"]
    assert line["numbers"] == sum(tensor.size for blob in state.values() for tensor in blob.values())
    assert 30e6 < line["peak_bytes"] < 4e9


def test_bench_meter_counts_both_directions_and_passes_everything_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as meter:
        with socket.create_connection(("127.0.0.1", meter.port), 5) as agent:
            broker, _ = server.accept()
            with broker:
                broker.settimeout(5)
                agent.sendall(b"x" * 1000)
                got = b""
                while len(got) < 1000:
                    got += broker.recv(4096)
                broker.sendall(b"yes")
                agent.settimeout(5)
                assert agent.recv(16) == b"yes"
        assert (meter.bytes_taken("up"), meter.bytes_taken("down")) == (1000, 3)


def test_bench_fleet_names_the_program_that_failed_and_stops_what_it_started() -> None:
    with ProcessFleet(small_task()) as fleet:
        sleeper = fleet.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
        fleet.start("broken", [sys.executable, "-c", "import sys; print('no such sensor'); sys.exit(3)"])
        with pytest.raises(Transient, match=r"(?s)broken ended with exit status 3; .*no such sensor"):
            fleet.until(lambda: False, 20.0, "never")
        pid = fleet.pid("sleeper")
        assert cpu_seconds(pid) >= 0
    assert sleeper.pid is None
    assert not psutil.pid_exists(pid)
    assert not fleet.root.exists()


def test_bench_fleet_waits_no_longer_than_said() -> None:
    with (
        ProcessFleet(small_task()) as fleet,
        pytest.raises(Transient, match=r"waited 0\.2 s for pigs to fly"),
    ):
        fleet.until(lambda: False, 0.2, "pigs to fly")
    assert lichen("agent", "run")[-3:] == ["lichen", "agent", "run"]


def test_bench_margins_are_paired_by_seed() -> None:
    reached = {PROTOTYPES: (0.70, 0.50), ALONE: (0.60, 0.30)}
    outcomes = [
        SparOutcome("p", seed, variant, "all", accuracy, 1.0)
        for variant, values in reached.items()
        for seed, accuracy in enumerate(values)
    ]
    rows = {(one.method, one.metric): one for one in rows_of(outcomes)}
    margin = rows[ALONE, "prototypes above it, points"]
    assert (round(margin.mean, 6), margin.n) == (15.0, 2)
    # unpaired, the spread would be that of the seeds: 14 and 21 points
    assert round(margin.sd, 3) == 7.071
    assert (PROTOTYPES, "prototypes above it, points") not in rows


def test_bench_dealing_people_keeps_every_series_with_its_person() -> None:
    series = tuple(spar.Series(p, 0, p % 7, np.zeros((4, 6), np.float32)) for p in spar.PEOPLE)
    new = dealt(series, 1)
    assert sorted(one.person for one in new) == list(spar.PEOPLE)
    assert [one.person for one in new] != list(spar.PEOPLE)
    assert [one.label for one in new] == [one.label for one in series]
    assert [one.person for one in dealt(series, 1)] == [one.person for one in new]
