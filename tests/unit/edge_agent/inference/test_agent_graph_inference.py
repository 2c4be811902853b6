"""A gateway answers questions about its own graph with a model that it was sent, from its own embeddings."""

import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.service import DeploymentService
from edge_agent.identity.fleet_secret import secret_path
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.onnx_models.loader import load
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.inference.question_answers import (
    NO_TABLES,
    NO_TABLES_ANY_MORE,
    Answers,
    AskedQuestion,
    NameIndex,
)
from edge_agent.inference.question_service import QuestionService
from edge_agent.inference.service import Inference
from edge_agent.knowledge_graph.question_file import Question
from edge_agent.knowledge_graph.reader import KnowledgeGraphReader
from edge_agent.knowledge_graph.workspace import KnowledgeGraphWorkspace
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.tasks.config_warnings import warnings
from edge_agent.tasks.task_store import TASK_FILE
from export.bundle_builder import Lineage, make_bundle
from models.knowledge_graph.data.embedding_tables import Tables
from protocol.bundle import BundleManifest, pack, unpack
from protocol.errors import Reason, Refused
from protocol.messages import ModelPointer, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from tests.support.agent.bundle import bundle as window_bundle
from tests.support.agent.bundle import ref_of
from tests.support.agent.data import toy_task
from tests.support.agent.graph_device import TASK, learn, settings_of, snapshot_of, tables_of
from tests.support.services import beside, until


@pytest.fixture(scope="module")
def data() -> bytes:
    return make_bundle(TASK, {}, Lineage(3, 3, "0" * 64, None, {}))[0]


def changed(data: bytes, **changes: object) -> bytes:
    manifest, files = unpack(data)
    fields = manifest.model_dump(exclude={"files"}) | changes
    return pack(BundleManifest.model_validate(fields), files)


def put(folder: Path, data: bytes) -> Path:
    manifest, files = unpack(data)
    path = folder / ref_of(data).digest
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    (path / "manifest.json").write_text(manifest.model_dump_json())
    return path


class Shelf:
    """Stands in for the fetcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, version: int = 3) -> ModelPointer:
        (self.folder / ref_of(data).digest).write_bytes(data)
        return ModelPointer(task=TASK.name, version=version, bundle=ref_of(data))

    async def fetch(self, ref, timeout_s):
        del timeout_s
        return self.folder / ref.digest

    def forget(self, digest) -> None:
        pass


@asynccontextmanager
async def gateway(settings: AgentSettings) -> AsyncIterator[SimpleNamespace]:
    """DeploymentService, inference and queries as the agent wires them."""
    clock, private = SystemClock(), PrivateTensors(settings.state_dir / "private")
    graph = settings.graph
    work = KnowledgeGraphWorkspace(
        TASK, (), KnowledgeGraphReader(graph, secret_path(settings), TASK, ()), clock
    )
    work.refresh()
    inference = Inference(settings.infer, clock, private)
    shelf, tasks = Shelf(settings.state_dir), SimpleNamespace(workspace=work)
    deployment = DeploymentService(
        settings.state_dir / "models",
        shelf,
        inference,
        tasks,
        fetch_timeout_s=1,
        changed=Signal(),
    )
    queries = QuestionService(graph.queries, inference, private, tasks, clock=clock, poll_s=0.02)
    services = (
        deployment.run,
        deployment.executor.run,
        partial(inference.run, observe=deployment.executor.observe),
        queries.run,
    )
    async with beside(*services, forever=True):
        yield SimpleNamespace(
            deployment=deployment, inference=inference, queries=queries, shelf=shelf, work=work
        )


def written(settings: AgentSettings) -> list[dict[str, object]]:
    path = settings.infer.output
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, *lines: str) -> None:
    with path.open("a") as out:
        out.write("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("isolation", [pytest.param("process", marks=pytest.mark.long), "none"])
async def test_questions_of_a_file_are_answered_and_again_after_a_round(
    tmp_path: Path, data: bytes, isolation: str
) -> None:
    settings = settings_of(tmp_path, isolation=isolation)
    queries, snapshot = settings.graph.queries, snapshot_of(settings)
    append(queries, "boiler\tstands_in", "?\tstands_in\tcellar", "nobody\tstands_in")
    async with gateway(settings) as device:
        device.deployment.offer(device.shelf.put(data))
        await until(lambda: len(written(settings)) == 3, 30)
        assert {line["why"] for line in written(settings)} == {NO_TABLES}
        assert device.inference.predictions == 0
        learn(settings, tables_of(snapshot, "stands_in"))
        await until(lambda: len(written(settings)) == 6)
        first, heads, nobody = written(settings)[3:]
        assert set(first) == {"wall", "head", "relation", "tails", "version", "latency_ms"}
        assert (first["head"], first["relation"], first["version"]) == ("boiler", "stands_in", 3)
        assert first["tails"][0] == {"entity": "cellar", "score": pytest.approx(12, abs=0.01), "known": True}
        assert {tail["entity"] for tail in first["tails"]} == {"cellar", "boiler", "thermometer 1"}
        assert [tail["known"] for tail in first["tails"][1:]] == [False, False]
        scores = [tail["score"] for tail in first["tails"]]
        assert scores == sorted(scores, reverse=True)
        assert (heads["tail"], heads["heads"][0]["entity"], heads["heads"][0]["known"]) == (
            "cellar",
            "boiler",
            True,
        )
        assert nobody["why"] == "'nobody' is in no fact of this device"
        await until(lambda: device.inference.predictions == 2)
        assert device.inference.model.own
        append(queries, "Zo\u00eb\tstands_in")
        await until(lambda: len(written(settings)) == 7)
        assert written(settings)[-1]["tails"][0]["entity"] == "pump"
        assert written(settings)[-1]["tails"][0]["known"] is False
        assert device.queries.status() == {"questions": 4, "questions_trouble": ""}
        device.deployment.offer(device.shelf.put(changed(data, version=4, round=4), 4))
        await until(lambda: len(written(settings)) == 11, 30)
        assert {line["version"] for line in written(settings)[7:]} == {4}
        await until(lambda: written(settings)[-1] == device.inference.last)


def answered(
    settings: AgentSettings, model: CompletionModel, *questions: Question
) -> list[dict[str, object]]:
    answers = Answers(PrivateTensors(settings.state_dir / "private"))
    return list(answers.lines(model, AskedQuestion(TASK, questions, snapshot_of(settings), 0.0)))


def test_an_entity_that_came_after_the_round_is_named_as_new(tmp_path: Path, data: bytes) -> None:
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, data), 1)
    learn(settings, tables_of(snapshot_of(settings), "feeds"))
    append(tmp_path / "house.tsv", "boiler\tfeeds\tradiator", "radiator\theats\tcellar")
    (known, radiator, heats, gone) = answered(
        settings,
        model,
        Question("boiler", "feeds"),
        Question("radiator", "feeds"),
        Question("cellar", "heats", heads=True),
        Question("boiler", "cools"),
    )
    assert known["tails"][0]["entity"] == "cellar"
    assert radiator["why"] == (
        "'radiator' is new here: it is learned in the next round of training that this device takes part in, "
        "if there is one (the model is of round 3 of 10)"
    )
    assert heats["why"].startswith("'heats' is new here")
    assert heats["heads"] == []
    assert gone["why"] == "'cools' is in no fact of this device"


def test_after_the_last_round_nothing_is_promised(tmp_path: Path, data: bytes) -> None:
    count = TASK.rounds.count
    last = changed(data, version=count, round=count)
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, last), 1)
    (none,) = answered(settings, model, Question("boiler", "feeds"))
    assert none["why"] == NO_TABLES_ANY_MORE.format(count)
    learn(settings, tables_of(snapshot_of(settings), "feeds"))
    append(tmp_path / "house.tsv", "boiler\tfeeds\tradiator")
    (known, radiator) = answered(settings, model, Question("boiler", "feeds"), Question("radiator", "feeds"))
    assert known["tails"]
    assert radiator["why"] == (
        f"'radiator' is new here: the last of the task's {count} rounds is over, and it is learned only if "
        "the coordinator's task is given more (rounds.count)"
    )
    more = TASK.model_copy(update={"rounds": TASK.rounds.model_copy(update={"count": count + 1})})
    answers = Answers(PrivateTensors(settings.state_dir / "private"))
    asked = AskedQuestion(more, (Question("radiator", "feeds"),), snapshot_of(settings), 0.0)
    (radiator,) = answers.lines(model, asked)
    assert f"(the model is of round {count} of {count + 1})" in radiator["why"]


def test_an_answer_takes_no_look_at_all_facts(tmp_path: Path) -> None:
    settings, count = settings_of(tmp_path), 20_000
    append(tmp_path / "house.tsv", *(f"boiler\tfeeds\tradiator {n}" for n in range(count)))
    snapshot = snapshot_of(settings)
    names, rows = NameIndex(snapshot), list(range(10))
    keys_K16 = snapshot.keyed.entity_keys_E16[rows]
    tracemalloc.start()
    try:
        found = names._answers(Question("boiler", "feeds"), keys_K16, rows, [0.0] * len(rows))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [one["known"] for one in found] == ["radiator" in one["entity"] for one in found]
    assert most < 8 * count / 4, "the facts take 8 bytes each"


def test_an_entity_that_has_left_the_facts_is_no_answer_and_few_entities_are_few_answers(
    tmp_path: Path, data: bytes
) -> None:
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, data), 1)
    learn(settings, tables_of(snapshot_of(settings), "feeds"))
    (tmp_path / "house.tsv").write_text("boiler\tfeeds\tthermometer 1\n")
    (line,) = answered(settings, model, Question("boiler", "feeds"))
    assert {tail["entity"] for tail in line["tails"]} == {"boiler", "thermometer 1"}, "without the cellar"
    learn(settings, tables_of(snapshot_of(settings), "feeds"))
    (line,) = answered(settings, model, Question("boiler", "feeds"))
    assert [(tail["entity"], tail["known"]) for tail in line["tails"]] == [
        ("thermometer 1", True),
        ("boiler", False),
    ]


def test_embeddings_that_the_model_cannot_take_are_said_and_a_damaged_file_is_left_alone(
    tmp_path: Path, data: bytes
) -> None:
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, data), 1)
    learn(settings, tables_of(snapshot_of(settings), "feeds", dim=6))
    (line,) = answered(settings, model, Question("boiler", "feeds"))
    assert re.search(r"takes entities of 1 x 4 .* have 1 x 6 and 6", line["why"])
    path = settings.state_dir / "private" / f"{TASK.name}.npz"
    path.write_bytes(b"half")
    (line,) = answered(settings, model, Question("boiler", "feeds"))
    assert str(path) in line["why"]
    assert path.read_bytes() == b"half"


def test_more_questions_than_one_call_takes_are_answered_each(tmp_path: Path, data: bytes) -> None:
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, data), 1)
    learn(settings, tables_of(snapshot_of(settings), "feeds"))
    questions = [Question(name, "feeds") for name in ("boiler", "cellar", "thermometer 1") * 30]
    found = [line["tails"][0]["entity"] for line in answered(settings, model, *questions)]
    assert found == ["cellar", "thermometer 1", "Zoë"] * 30


def test_a_model_of_the_other_kind_does_not_fit(data: bytes) -> None:
    graph, windows = unpack(data)[0], unpack(window_bundle(toy_task(name=TASK.name)))[0]
    require_compatible(graph, TASK, ())
    with pytest.raises(Refused, match="reads windows, task 'house' completes knowledge graphs"):
        require_compatible(windows, TASK, ())
    with pytest.raises(Refused, match="completes knowledge graphs, task 'house' reads windows"):
        require_compatible(graph, toy_task(name=TASK.name), ("acc",))
    other = Task.model_validate(TASK.model_dump() | {"graph": {"top_k": 9}})
    with pytest.raises(Refused, match="gives 3 answers, the task says 9"):
        require_compatible(graph, other, ())


def test_which_kind_a_model_is_its_manifest_says(tmp_path: Path, data: bytes) -> None:
    windows = put(tmp_path, window_bundle(toy_task()))
    assert isinstance(load(windows, 1), LoadedModel)
    loaded = load(put(tmp_path, data), 1)
    assert isinstance(loaded, CompletionModel)
    loaded.try_once()
    with pytest.raises(Refused, match="of windows, not of knowledge graphs"):
        CompletionModel(windows, 1)
    wider = changed(data, graph={"top_k": 3, "views": 1, "entity_dim": 5, "relation_dim": 4})
    with pytest.raises(Refused, match=r"input 'entities' is tensor\(float\) .*, not float of any number of"):
        load(put(tmp_path, wider), 1)
    _, files = unpack(window_bundle(toy_task()))
    manifest, _ = unpack(data)
    with pytest.raises(Refused, match="the ONNX model's inputs are"):
        load(put(tmp_path, pack(manifest, files)), 1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda t, s: (t, s[:, ::-1]), "did not give the best"),
        (lambda t, s: (np.zeros_like(t), s), "did not give the best"),
        (lambda t, s: (t + 9, s), "beyond 1 entities"),
        (lambda t, s: (t, s * np.float32(np.nan)), "or no numbers"),
        (lambda t, s: (t[:1], s), "not \\(2, 3\\)"),
        (lambda t, s: (t.astype(np.float32), s), "tails are float32"),
    ],
)
def test_a_model_that_answers_nonsense_fails_its_probe(
    tmp_path: Path, data: bytes, wrong, words: str
) -> None:
    model = CompletionModel(put(tmp_path, data), 1)
    inner = model._session

    class Session:
        def run(self, names, feeds):
            return wrong(*inner.run(names, feeds))

    model._session = Session()
    with pytest.raises(Refused, match=words) as info:
        model.try_once()
    assert info.value.reason in {Reason.WRONG_TENSORS, Reason.OUT_OF_BOUNDS}


def config_of(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(
        'fleet = "f"\ndevice = "d"\nstate_dir = "state"\ncache_dir = "cache"\n'
        '[mqtt]\nhost = "localhost"\n[graph]\ntriples = ["house.tsv"]\n'
    )
    return path


def keep_task(settings: AgentSettings, task: Task) -> None:
    (settings.state_dir / TASK_FILE).write_bytes(encode(TaskAnnouncement.of(task)))


def command(tmp_path: Path, *words: str) -> SimpleNamespace:
    done = CliRunner().invoke(app, ["ask", *words, "--config", str(config_of(tmp_path))])
    return SimpleNamespace(code=done.exit_code, out=done.stdout, err=done.stderr)


def test_one_question_is_answered_on_the_command_line_and_nothing_is_written(
    tmp_path: Path, data: bytes
) -> None:
    settings = settings_of(tmp_path)
    asked = ("boiler", "stands_in")
    assert command(tmp_path, *asked).code == 69
    assert "no task was announced" in command(tmp_path, *asked).err
    keep_task(settings, TASK)
    assert "no model of task 'house' is installed" in command(tmp_path, *asked).err
    folder = put(settings.state_dir / "models", data)
    current = {"task": TASK.name, "version": 3, "digest": folder.name}
    (settings.state_dir / "models" / "current.json").write_text(json.dumps(current))
    assert command(tmp_path, *asked).err.endswith(f"{NO_TABLES}\n")
    learn(settings, tables_of(snapshot_of(settings), "stands_in"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "agent.toml"}
    done = command(tmp_path, *asked, "--format", "json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["head"], said["version"]) == ("boiler", 3)
    assert said["tails"][0]["entity"] == "cellar"
    table = command(tmp_path, "cellar", "stands_in", "--tail")
    assert table.code == 0
    assert "(?, stands_in, cellar), version 3" in table.out
    assert re.search(r"1 +boiler +1[12]\.\d+ +known", table.out)
    for words, message in (
        (("nobody", "stands_in"), "'nobody' is in no fact of this device"),
        (("Boiler", "stands_in"), "'Boiler' is in no fact of this device; did you mean 'boiler'?"),
        (("boiler", "stand_in"), "'stand_in' is in no fact of this device; did you mean 'stands_in'?"),
        (("boiler", " "), "the relation is empty"),
    ):
        wrong = command(tmp_path, *words, "--format", "json")
        assert wrong.code == 65
        assert json.loads(wrong.out)["error"] == message
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "agent.toml"}
    assert after == before
    append(tmp_path / "house.tsv", "radiator\tstands_in\tcellar")
    new = command(tmp_path, "radiator", "stands_in")
    assert (new.code, "is learned in the next round" in new.err) == (69, True)


def test_what_the_agent_left_damaged_is_said_and_never_on_standard_output(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    keep_task(settings, TASK)
    (settings.state_dir / "models").mkdir()
    (settings.state_dir / "models" / "current.json").write_text("{")
    wrong = command(tmp_path, "boiler", "feeds", "--format", "json")
    assert (wrong.code, "no model of task" in json.loads(wrong.out)["error"]) == (69, True)
    assert "deployment_record_damaged" in wrong.err
    (settings.state_dir / TASK_FILE).write_text("{")
    wrong = command(tmp_path, "boiler", "feeds")
    assert (wrong.code, "task.json: cannot be read as a task" in wrong.err) == (78, True)


def test_a_device_without_facts_cannot_be_asked(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    keep_task(settings, toy_task())
    done = command(tmp_path, "boiler", "feeds")
    assert done.code == 78
    assert "task 'toy' is on windows" in done.err


def test_tables_that_hold_no_numbers_are_none(tmp_path: Path, data: bytes) -> None:
    settings, model = settings_of(tmp_path), CompletionModel(put(tmp_path, data), 1)
    tables = tables_of(snapshot_of(settings), "feeds")
    void = np.full_like(tables.relations_XC, np.nan)
    learn(settings, Tables(tables.entities_EVD, tables.entity_keys_E16, void, tables.relation_keys_R16))
    (line,) = answered(settings, model, Question("boiler", "feeds"))
    assert line["why"] == NO_TABLES


def test_answers_that_nobody_could_read_are_a_warning(tmp_path: Path) -> None:
    assert not [words for words in warnings(settings_of(tmp_path), TASK, []) if "queries" in words]
    for changes, why in (({"output": None}, "neither infer.output nor"), ({"enabled": False}, "is false")):
        (found,) = [w for w in warnings(settings_of(tmp_path, **changes), TASK, []) if "graph.queries" in w]
        assert why in found
    (tmp_path / "questions.d").mkdir()
    graph = settings_of(tmp_path).graph
    assert graph is not None
    folder = graph.model_copy(update={"queries": tmp_path / "questions.d"})
    found = warnings(settings_of(tmp_path).model_copy(update={"graph": folder}), TASK, [])
    assert any("questions.d is a folder" in words for words in found)
