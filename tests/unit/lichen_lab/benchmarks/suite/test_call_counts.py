"""The tracer behind ``lichen bench calls``, on a real process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lichen_lab.benchmarks.suite import call_counts
from lichen_lab.benchmarks.suite.call_counts import CountedCall
from protocol.errors import Transient

_ROOT = Path(__file__).resolve().parents[5]
_HOOK = _ROOT / "lichen_lab" / "benchmarks" / "support" / "call_hook"
_PROGRAM = """
import os, threading
from protocol.base import is_name
from protocol.topics import parse
thread = threading.Thread(target=is_name, args=("x",)); thread.start(); thread.join()
if os.fork() == 0:
    parse("lichen/v1/f/b/task"); os._exit(0)
os.wait()
"""


def test_functions_of_threads_and_forked_processes_are_traced_and_class_bodies_are_not(
    tmp_path: Path,
) -> None:
    env = {"PYTHONPATH": f"{_ROOT}:{_HOOK}", "LICHEN_CALLS": str(tmp_path), "LICHEN_CALLS_ROOT": str(_ROOT)}
    subprocess.run([sys.executable, "-P", "-c", _PROGRAM], env={**os.environ, **env}, check=True, timeout=60)

    found = call_counts.entered(call_counts.read(tmp_path), 0.0, float("inf"))

    assert {("protocol/base.py", "is_name"), ("protocol/topics.py", "parse")} <= found
    assert ("protocol/topics.py", "Route") not in found
    assert len(list(tmp_path.glob("*.calls"))) == 2


def test_calls_outside_a_span_and_published_messages_are_not_counted() -> None:
    calls = [
        CountedCall(1.0, "a.py", "early"),
        CountedCall(2.0, "publish", "lichen/v1/f/b/offer"),
        CountedCall(2.5, "a.py", "f"),
        CountedCall(2.6, "a.py", "f"),
        CountedCall(4.0, "a.py", "late"),
    ]

    assert call_counts.entered(calls, 2.0, 3.0) == {("a.py", "f")}
    assert call_counts.published(calls, "/b/offer") == [2.0]
    with pytest.raises(Transient, match="down/receipt"):
        call_counts.published(calls, "/down/receipt")
