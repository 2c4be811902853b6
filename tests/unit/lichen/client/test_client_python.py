"""Predictions for programs: what a line means, and a file that is followed through its rotations."""

import json
import re
import threading
from pathlib import Path

import pytest

from edge_agent.inference.rotating_log import RotatingLines
from lichen.client import Found, Prediction, Predictions, parse, predictions, read
from lichen.client.follow import MAX_WAITING
from tests.support.python import python
from tests.support.sensors.publishing import ALL, line


def written(*lines: object) -> str:
    return "".join(f"{json.dumps(one)}\n" for one in lines)


def test_a_line_is_told_in_types() -> None:
    said = parse(json.dumps(line(2)), "lichen/barn-1")
    assert (said.source, said.version, said.t, said.latency_ms) == ("lichen/barn-1", 7, 4.5, 1.5)
    assert (said.label, said.confidence, said.probabilities) == ("still", 0.875, (0.875, 0.125))
    assert (said.missing, dict(said.quality)) == (("acc",), {"acc": 0.75})
    assert set(said.targets) == {"label", *ALL}
    assert said.targets["skin-temperature"].value == 32.5
    assert said.targets["skin-temperature"].confidence is None
    assert said.targets["steps"].truth == 2.0
    assert (said.targets["mood"].label, said.targets["mood"].truth) == ('said "no"', "calm")
    assert said.targets["pulse"].error == 0.125
    assert (said.personal, said.retained, said.truth, said.found) == (False, False, None, ())
    assert said.line == line(2)


def test_an_answer_about_a_graph_is_told_in_types() -> None:
    told = {
        "wall": 5.0,
        "head": "boiler",
        "relation": "feeds",
        "tails": [{"entity": "kitchen", "score": 1.5, "known": True}],
        "version": 3,
        "latency_ms": 2.0,
    }
    said = parse(json.dumps(told))
    assert said.question == {"head": "boiler", "relation": "feeds"}
    assert said.found == (Found("kitchen", 1.5, known=True),)
    assert (said.label, said.confidence, said.t, dict(said.targets)) == (None, None, None, {})
    none = {**told, "tails": [], "why": "'boiler' is in no fact of this device"}
    assert parse(json.dumps(none)).why.startswith("'boiler'")


def test_a_model_that_does_not_predict_the_first_target_has_no_label() -> None:
    said = parse(json.dumps({**line(0), "label": None, "probabilities": None}))
    assert (said.label, said.confidence, said.probabilities) == (None, None, ())
    assert "label" not in said.targets


NONE = [b"", b"{", b"[]", b"3", b"null", b'{"label": "a"}', b'{"version": []}', b"\xff", b"[" * 100_000]
NONE += [json.dumps({**line(0), key: "x"}).encode() for key in ("present", "targets", "wall", "version")]


@pytest.mark.parametrize("payload", NONE, ids=lambda payload: repr(payload[:20]))
def test_what_is_no_prediction_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(payload)


def test_what_a_file_holds_is_read_the_rotated_one_first(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    with pytest.raises(FileNotFoundError):
        next(read(path))
    path.write_text(written(line(1)) + "garbage\n" + written(line(2)) + '{"half')
    (tmp_path / "predictions.jsonl.1").write_text(written(line(0)))
    assert [said.t for said in read(path)] == [2.5, 3.5, 4.5]
    assert {said.source for said in read(path)} == {str(path)}


def test_new_lines_are_followed_through_every_rotation(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text(written(line(1000)))
    count = 300
    out = RotatingLines(path, 4096)  # as the agent writes; about eight lines a file

    def write() -> None:
        for i in range(count):
            out.write([json.dumps(line(i))])
            pause.wait(0.002)
        out.close()

    pause = threading.Event()
    with predictions(path, timeout_s=10) as stream:
        writer = threading.Thread(target=write)
        writer.start()
        times = [next(stream).t]
        while times[-1] != 2.5 + count - 1:
            times.append(next(stream).t)
        writer.join()
        assert stream.state == f"follows {path}"
    assert 1002.5 not in times, "what was there before is past"
    assert times == sorted(set(times)), "in order, none twice"
    with pytest.raises(StopIteration):
        next(stream)


def test_a_line_that_is_half_written_is_waited_for_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    with predictions(path, timeout_s=0.4) as stream:
        with pytest.raises(TimeoutError, match="follows"):
            next(stream)
        whole = written(line(0))
        with path.open("w") as file:
            file.write(whole[:50])
            file.flush()
            with pytest.raises(TimeoutError):
                next(stream)
            file.write(whole[50:] + "garbage\n")
        assert next(stream).t == 2.5
        with pytest.raises(TimeoutError):
            next(stream)
        assert stream.skipped == 1
        path.write_text("")  # emptied by hand
        with pytest.raises(TimeoutError):
            next(stream)
        path.write_text(written(line(1)))
        assert next(stream).t == 3.5


def test_who_does_not_ask_loses_the_oldest_and_no_memory() -> None:
    stream = Predictions(timeout_s=1)
    for i in range(MAX_WAITING + 5):
        stream.put(Prediction("here", i, 0.0, 0.0))
    assert (stream.dropped, next(stream).version) == (5, 5)


def test_who_waits_for_ever_is_let_go_when_it_is_closed(tmp_path: Path) -> None:
    stream = predictions(tmp_path / "none.jsonl")
    ended: list[list[Prediction]] = []
    waiting = threading.Thread(target=lambda: ended.append(list(stream)))
    waiting.start()
    stream.close()
    waiting.join(10)
    assert ended == [[]]


@pytest.mark.parametrize(
    "where",
    [
        "mqtt://",
        "mqtt://me:secret@host",
        "http://me:secret@host/topic",
        "mqtt:///topic",
        "mqtt://me:secret/word@host/topic",
        "mqtt://host/lichen/#",
    ],
)
def test_an_address_that_is_none_is_an_error_and_tells_no_password(where: str) -> None:
    with pytest.raises(ValueError, match="mqtt://host:port/topic") as error:
        predictions(where)
    assert "secret" not in str(error.value)


def test_the_example_of_the_docs_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[4] / "docs" / "predictions.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    said = [parse(json.dumps({**line(i), "probabilities": [0.1, 0.9]}), "lichen/barn-1") for i in range(3)]
    monkeypatch.setattr(
        "lichen.client.predictions", lambda where: said if where.startswith("mqtt://") else []
    )
    exec(compile(example, "predictions.md", "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out == "lichen/barn-1 walks; missing modalities: ()\n"


def test_the_client_imports_nothing_heavy() -> None:
    code = "import sys, lichen.client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = python("-c", code)
    loaded = set(done.stdout.split())
    assert {"lichen", "json"} <= loaded
    heavy = {"numpy", "pydantic", "paho", "structlog", "typer", "cbor2", "runtime", "models", "protocol"}
    assert not loaded & heavy
