"""Selects and stores the task of this device, and checks whether the device can do it."""

from pathlib import Path
from typing import Final

import structlog

from edge_agent.config.agent import AgentSettings, LearnSettings, read_task
from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.config.privacy import PrivacySettings
from edge_agent.sources.base import Source
from edge_agent.sources.task_match import matching_modalities, source_mismatches
from edge_agent.tasks.privacy_floors import require_private, require_protected
from edge_agent.tasks.profile import permitted_profile, unknown_modalities
from edge_agent.tasks.roles import has_onnxruntime, learn_settings, learning_role, privacy_floors
from models import packages, registry
from models.backbones.views import backbones
from protocol.errors import Misconfigured, Reason, Refused
from protocol.messages import decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task

_log = structlog.get_logger(__name__)
TASK_FILE: Final = "task.json"
"""In the state folder: the last announced task."""


def check_task(
    task: Task,
    sources: list[Source],
    learn: LearnSettings | None = None,
    graph: KnowledgeGraphSettings | None = None,
    floors: PrivacySettings | None = None,
) -> None:
    """Check that this device can do the task, with its own settings and knowledge graph.

    Raises:
        Unprotected: its table ``[privacy]`` does not meet the device's floors.
        Misconfigured: unknown method, wrong option of the method, less noise than the device's minimum, no
            common modality to read, or no target; or the task is on knowledge graphs, and this device has
            none.
    """
    learn = learn or LearnSettings()
    require_private(task, learn)
    require_protected(task, floors or PrivacySettings())
    if task.graph is not None:
        require_knowledge_graph(task, graph)
        return
    delivered = matching_modalities(task, sources)
    profile = permitted_profile(task, delivered, learn)
    if not delivered:
        none = (
            "there is no source"
            if graph is None
            else "it is on windows, and this device has [graph] and no source"
        )
        words = "; ".join(source_mismatches(task, sources)) or none
        raise Misconfigured(f"task {task.name!r}: this device delivers none of its modalities: {words}")
    if not profile.modalities:
        setting = "" if learn.inputs is None else f", learn.inputs names {', '.join(learn.inputs)}"
        raise Misconfigured(
            f"task {task.name!r}: this device has nothing to read: it delivers {', '.join(delivered)}, the "
            f"task reads {', '.join(task.input_names)}{setting}"
        )
    needing = backbones(task).keys() & set(profile.modalities)
    if needing == set(profile.modalities) and not has_onnxruntime():
        raise Misconfigured(
            f"task {task.name!r}: the backbones of {', '.join(sorted(needing))} need ONNX Runtime, which is "
            "not installed here: pip install 'lichen[infer]'"
        )
    if not profile.targets:
        raise Misconfigured(
            f"task {task.name!r}: this device has nothing to learn: learn.targets names "
            f"{', '.join(learn.targets or ())}; the task has {', '.join(task.target_names)}, and a "
            "generation needs its modality"
        )


def check_for(task: Task, sources: list[Source], settings: AgentSettings) -> None:
    """:func:`check_task` by the settings of an agent."""
    floors = privacy_floors(settings, task)
    check_task(task, sources, learn_settings(settings, task), settings.graph, floors)


def require_packages(task: Task, settings: AgentSettings) -> None:
    """Check that this device has the packages of a task, if it trains. Touches the disk.

    Nothing is imported but a method: every device asks it about routes, options and privacy.

    Raises:
        Misconfigured: it does not have or allow them; the message says what to do.
    """
    if task.packages and learning_role(settings, task) == "train":
        packages.require(task, settings.packages.allow)
    registry.admit(task, settings.packages.allow)


def require_knowledge_graph(task: Task, graph: KnowledgeGraphSettings | None) -> KnowledgeGraphSettings:
    """This device's knowledge graph, for a task on knowledge graphs.

    Raises:
        Misconfigured: it has none.
    """
    if graph is None:
        raise Misconfigured(
            f"task {task.name!r} is on knowledge graphs, and this device has none: "
            "write a table [graph] with triples"
        )
    return graph


def unused(task: Task, sources: list[Source], graph: KnowledgeGraphSettings | None) -> list[str]:
    """Messages about delivered data that the task cannot use."""
    if task.graph is None:
        return source_mismatches(task, sources)
    known = ", ".join(task.modality_names) or "none"
    return [
        f"graph.features.{name}: task {task.name!r} has no such modality (it has {known})"
        for name in (() if graph is None else graph.features)
        if name not in task.modality_names
    ]


def first_task(settings: AgentSettings, sources: list[Source]) -> Task | None:
    """The last announced task, else that of ``task_file``, else None.

    Raises:
        Misconfigured: ``task_file`` is missing or wrong, or a source does not fit it.
    """
    file = settings.state_dir / TASK_FILE
    from_file = None if settings.task_file is None else read_task(settings.task_file)
    if from_file is not None:
        require_packages(from_file, settings)
        check_for(from_file, sources, settings)
        if wrong := [
            *(
                [] if settings.tasks else unused(from_file, sources, settings.graph)
            ),  # another task may use it
            *unknown_modalities(from_file, settings.learn),
        ]:
            raise Misconfigured(f"{'; '.join(wrong)} ({settings.task_file})")
    announced = read_saved_task(file)
    if announced is None:
        return from_file
    try:
        require_packages(announced, settings)
        check_for(announced, sources, settings)
    except Misconfigured as error:
        _log.warning("saved_task_does_not_fit", why=str(error))
        return from_file
    return announced


def read_saved_task(path: Path) -> Task | None:
    """The last announced task; None if there is none, or its file cannot be read."""
    try:
        return _read_task_file(path)
    except FileNotFoundError:
        return None
    except (OSError, Refused) as error:
        _log.warning(
            "saved_task_unreadable", detail="it will be announced again", file=str(path), error=str(error)
        )
        return None


def saved_task_mismatch(path: Path) -> str:
    """Why this release cannot read the last announced task (of a newer one); empty if it can."""
    try:
        _read_task_file(path)
    except Refused as error:
        return error.words if error.reason is Reason.UNKNOWN_TASK else ""
    except OSError:
        return ""
    return ""


def _read_task_file(path: Path) -> Task:
    """The stored task. It is stored as announced, so a downgrade and upgrade of this agent lose no key.

    Raises:
        OSError: there is none.
        Refused: it cannot be read, or not by this release (UNKNOWN_TASK).
    """
    return decode(path.read_bytes(), TaskAnnouncement).read()
