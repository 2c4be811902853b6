"""The owner of a state folder: one fleet and one task."""

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.round_machine.events import Rules
from coordinator.storage.database import Database
from models.privacy.accountant import releases_within
from models.privacy.shared_noise import shared_noise
from models.registry import methods
from protocol.errors import Misconfigured
from protocol.tasks.folding import Privacy
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.task import Task


def within_epsilon(task: Task) -> Task:
    """A task with as many rounds as ``privacy.max_epsilon`` leaves."""
    if task.privacy is None:
        return task
    most = releases_within(task.privacy, task.rounds.count, shared_noise(task))
    return task.model_copy(update={"rounds": task.rounds.model_copy(update={"count": most})})


def rules_of(task: Task, settings: CoordinatorSettings) -> Rules:
    """The rules of the round machine: as many rounds as ``privacy.max_epsilon`` leaves."""
    return Rules.of(
        within_epsilon(task),
        spread_s=settings.spread_s,
        away_grace_s=settings.away_grace_s,
        evaluate=settings.evaluation.data is not None,
        evaluate_every=settings.evaluation.every_rounds,
        export=settings.export.enabled,
        export_every=settings.export.every_rounds,
    )


def own_task(store: Database, task: Task, settings: CoordinatorSettings) -> None:
    """Bind the folder to this fleet and task.

    Raises:
        Misconfigured: see :func:`check_owner`.
    """
    check_owner(store, task, settings)
    store.put_meta({"task": task.model_dump_json(), "fleet": settings.fleet})


def _compared(task: Task) -> Task:
    """The task without what no version depends on: the stream stored beside windows, tunable options.

    Of knowledge graphs only the features matter: their bounds may grow with the sites.
    """
    spec = methods().get(task.method)
    tunable = () if spec is None else spec.tunable
    config = {key: value for key, value in task.config.items() if not key.startswith(tunable)}
    window = task.window.model_copy(update={"context_s": None})
    graph = None if task.graph is None else KnowledgeGraphTask(features=task.graph.features)
    return task.model_copy(update={"window": window, "config": config, "graph": graph})


def check_owner(store: Database, task: Task, settings: CoordinatorSettings) -> None:
    """Compare task and fleet with those the folder was created with; other keys of the task may change.

    Raises:
        Misconfigured: another task or fleet; the message names the key that differs.
    """
    fleet = store.get_meta("fleet") or settings.fleet  # older folders do not name it
    if fleet != settings.fleet:
        raise Misconfigured(
            f"fleet: the configuration says {settings.fleet!r}, but {store.where} was begun by {fleet!r}; "
            "use another state_dir (or change it back)"
        )
    known = store.get_meta("task")
    if known is not None:
        old = Task.model_validate_json(known)
        keys = ("name", "method", "labels", "modalities", "targets", "graph", "window", "network", "config")
        for key in keys:
            if getattr(_compared(old), key) != getattr(_compared(task), key):
                raise Misconfigured(
                    f"{settings.task}: {key} differs from what {settings.state_dir} was created with; "
                    "use another state_dir (or change it back)"
                )
        if _account_of(old) != _account_of(task):
            raise Misconfigured(
                f"{settings.task}: privacy differs from what {settings.state_dir} was created with, and "
                "its account "
                "of the versions so far would be wrong; only clip and max_epsilon may change, and "
                "[secure_aggregation] with its min_devices stays: use another state_dir (or change it back)"
            )


def _account_of(task: Task) -> tuple[Privacy, int | None] | None:
    """What epsilon depends on: the table, and how many devices share the noise, if they add it."""
    if task.privacy is None:
        return None
    shared = shared_noise(task)
    sharers = None if shared is None else shared.devices
    return task.privacy.model_copy(update={"clip": 1.0, "max_epsilon": None}), sharers
