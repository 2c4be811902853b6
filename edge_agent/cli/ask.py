"""``lichen agent ask``: asks the installed model of this device one question. Writes nothing.

It works with or without a running agent, and without a network: it reads the present files of the knowledge
graph, and the model and embeddings that the agent stored.
"""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.config.agent import AgentSettings, read_task
from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.deployment.bundle_store import read_current
from edge_agent.identity.files import read_small
from edge_agent.identity.fleet_secret import secret_path
from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.question_answers import Answers, AskedQuestion, stamped
from edge_agent.knowledge_graph.question_file import Question
from edge_agent.knowledge_graph.reader import KnowledgeGraphReader, KnowledgeGraphSnapshot
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.tasks.task_store import TASK_FILE
from models.knowledge_graph.data.graph import KnowledgeGraph
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient
from protocol.messages import decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from runtime import exit_codes, logs
from runtime.cli import Format, FormatOption, fail
from runtime.clock import SystemClock


def ask(
    entity: Annotated[str, typer.Argument(metavar="HEAD", help="the known entity")],
    relation: Annotated[
        str, typer.Argument(metavar="RELATION", help="the relation, as written in the facts")
    ],
    *,
    tail: Annotated[
        bool,
        typer.Option("--tail", help="HEAD is the tail of the fact: answer with heads"),
    ] = False,
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Ask the installed model which entities complete a fact, the best first. Known facts are marked.

    Exit status 65: no fact has such an entity or relation; 69: there is no model, or it has not learned them.
    """
    try:
        settings = read_task_settings(config, task_name)
        logs.configure(settings.log)
        line = _answered(settings, config, entity, relation, heads=tail)
    except LichenError as error:
        code = exit_codes.UNAVAILABLE if isinstance(error, Transient) else None
        fail("lichen agent ask", error, output, code)
    if output is Format.JSON:
        typer.echo(json.dumps(line))
    else:
        _show(line)


def _answered(
    settings: AgentSettings, config: Path, about: str, relation: str, *, heads: bool
) -> dict[str, Any]:
    """The answer, as a line of ``infer.output``.

    Raises:
        Misconfigured: this device has no knowledge graph, or a file of it is wrong.
        Refused: it is not a question, or no fact has its names; or the model is damaged.
        Transient: there is no task, no model or nothing was learned yet.
    """
    if settings.graph is None:
        raise Misconfigured(f"{config}: there is no table [graph]: this device has no facts to complete")
    try:
        question = Question.of(about, relation, heads=heads)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, str(error)) from None
    task, clock = _task(settings, config), SystemClock()
    begun = clock.now()
    model = _model(settings, task)
    answers = Answers(PrivateTensors(settings.state_dir / "private"))
    if why := answers.unavailable_reason(model, task):
        raise Transient(why)
    asked = AskedQuestion(task, (question,), _snapshot(settings, settings.graph, task), begun)
    (line,) = answers.lines(model, asked)
    if "why" in line:
        graph = asked.snapshot.graph
        if question.about in graph.entities and question.relation in graph.relations:
            raise Transient(line["why"])
        raise Refused(Reason.OUT_OF_BOUNDS, line["why"] + _nearest(question, graph))
    return stamped(line, model.manifest, clock.wall(), clock.now() - begun)


def _nearest(question: Question, graph: KnowledgeGraph) -> str:
    """A hint with a similar name; empty if there is none."""
    unknown_name, known = (
        (question.relation, graph.relations)
        if question.about in graph.entities
        else (question.about, graph.entities)
    )
    alike = [name for name in known if name.casefold() == unknown_name.casefold()]
    near = alike or difflib.get_close_matches(unknown_name, known, 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _task(settings: AgentSettings, config: Path) -> Task:
    kept = settings.state_dir / TASK_FILE
    data = read_small(kept)
    if data is None:
        if settings.task_file is None:
            raise Transient(f"{kept} is missing: no task was announced to this device yet")
        task = read_task(settings.task_file, config)
    else:
        try:
            task = decode(data, TaskAnnouncement).read()
        except Refused as error:
            raise Misconfigured(f"{kept}: cannot be read as a task: {error.words}"[:500]) from None
    if task.graph is None:
        raise Misconfigured(
            f"task {task.name!r} is on windows: its model predicts, and cannot answer questions"
        )
    return task


def _model(settings: AgentSettings, task: Task) -> CompletionModel:
    folder = settings.state_dir / "models"
    current = read_current(folder)
    if current is None or current.task != task.name:
        raise Transient(
            f"no model of task {task.name!r} is installed in {folder}: a running agent gets one when the "
            "coordinator has exported a version"
        )
    return CompletionModel(folder / current.digest, settings.infer.threads)


def _snapshot(settings: AgentSettings, graph: KnowledgeGraphSettings, task: Task) -> KnowledgeGraphSnapshot:
    """Names and facts; the embeddings already contain the features."""
    facts = graph.model_copy(update={"features": {}, "masks": None})
    found = KnowledgeGraphReader(facts, secret_path(settings), task, ()).read_if_changed(0.0)
    if found is None:
        raise Transient("the files of the knowledge graph are being written; ask again")
    return found


def _show(line: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only the table needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    heads = "heads" in line
    known = "(?, {relation}, {tail})" if heads else "({head}, {relation}, ?)"
    table = Table(title=Text(f"{known.format(**line)}, version {line['version']}"), box=None)
    for column in ("", "head" if heads else "tail", "score", ""):
        table.add_column(column)
    for place, one in enumerate(line["heads" if heads else "tails"], 1):
        marked = "known" if one["known"] else ""
        table.add_row(str(place), Text(one["entity"]), f"{one['score']:.3f}", marked)
    Console().print(table)
