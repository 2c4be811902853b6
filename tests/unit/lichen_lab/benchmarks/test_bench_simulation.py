"""``lichen bench simulation``: both sides get the same work, and CPU is counted over all processes."""

import sys

import psutil
import pytest
import torch

from lichen_lab.benchmarks.suite.peers.flower_fleet import VARIABLE
from lichen_lab.benchmarks.suite.simulation_speed import bench, plain_loop
from lichen_lab.benchmarks.suite.simulation_speed.bench import (
    AT_ONCE,
    FLOWER,
    LICHEN,
    PLAIN,
    SimulationLoad,
    commands,
    measure,
)
from lichen_lab.benchmarks.suite.simulation_speed.fleet import REFERENCE, SMALL, task_of, windows_of
from models.multimodal.network import build
from protocol.errors import Misconfigured, Transient


def test_the_networks_are_those_of_the_page():
    nets = [build(task_of(network, 2, 3)) for network in (SMALL, REFERENCE)]
    counts = [sum(p.numel() for p in net.parameters()) for net in nets]
    assert counts == [2486, 223_622]


def test_a_device_has_the_same_windows_on_both_sides():
    task = task_of(SMALL, 2, 3)
    one, again, other = (windows_of(task, number, 4) for number in (1, 1, 2))
    assert one.x["gyroscope"].tobytes() == again.x["gyroscope"].tobytes()
    assert one.x["gyroscope"].tobytes() != other.x["gyroscope"].tobytes()


def test_without_flower_the_make_target_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(Misconfigured, match="make flower"):
        measure(SimulationLoad(SMALL, 4, 2, 2), FLOWER)


def test_cpu_counts_from_the_end_of_the_first_round_and_all_processes_end(monkeypatch):
    spin = "t = time.process_time()\nwhile time.process_time() < t + .2: pass\n"
    child = (
        f"import time\n{spin}print('round 1', flush=True)\n"
        # The bench reads the line, and the CPU until then, a moment later on a busy machine.
        f"time.sleep(.5)\n{spin}print('round 2', flush=True)\ntime.sleep(60)"
    )
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    monkeypatch.setattr(bench, "commands", lambda *_: [sys.executable, "-c", script])
    before = set(psutil.Process().children(recursive=True))
    figures = measure(SimulationLoad(SMALL, 4, 2, 2), LICHEN)
    assert 90 < figures["CPU ms a client-round"] < 190  # of the child's .4 s those after round 1, over two
    assert not set(psutil.Process().children(recursive=True)) - before


def test_the_plain_loop_trains_each_device_from_the_same_weights(capsys):
    threads = torch.get_num_threads()
    plain_loop.main(SMALL, 2, reuse=False)
    torch.set_num_threads(threads)
    assert capsys.readouterr().out.splitlines() == ["round 1", "round 2"]


def test_both_ways_of_lichen_get_the_same_work():
    work = SimulationLoad(SMALL, 6, 4, 2)
    assert commands(work, LICHEN, 2)[4:] == [SMALL, "6", "4", "2", "2", "1"]
    assert commands(work, AT_ONCE, 2)[4:] == [SMALL, "6", "4", "2", "2", "32"]


def test_a_side_that_fails_says_how(monkeypatch):
    monkeypatch.setattr(bench, "commands", lambda *_: [sys.executable, "-c", "raise SystemExit('no memory')"])
    with pytest.raises(Transient, match="0 of 2 rounds: no memory"):
        measure(SimulationLoad(SMALL, 4, 2, 2), PLAIN)
