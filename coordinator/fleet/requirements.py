"""Requirements of a task: what a device needs to take part. Pure: the daemon and its ``status`` agree."""

from dataclasses import dataclass

from models.contract import Profile
from models.materials import KINDS
from models.registry import methods
from protocol.messages import State
from protocol.tasks.task import LABEL, Task

NEEDS_A_TRAINER = "waits for a device that trains"
"""Reason for a device that is eligible, but not alone."""
REFUSES = "refuses the task"
"""Begin of the reason for a device that says that it cannot run the task; its own words follow."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The task's requirements, and what the coordinator has ready.

    Attributes:
        min_windows: windows to learn from; of a knowledge graph, triples.
        modalities: the task's; a device of role ``prototype`` must have one of them, and so must one that
            trains where the method is ``routed``.
        no_prototypes: why a device whose only learning role is ``prototype`` cannot take part now; empty if
            it can.
        needs_training: whether a round needs a device that trains.
        wants_encoder_models: whether the method uses devices of role ``prototype``, which need them.
        routed: devices hold parts of the model, by what they read and predict.
        needs_labels: whether devices that train learn from labelled windows alone.
        noun: what is counted, in the plural.
    """

    min_windows: int
    modalities: tuple[str, ...] = ()
    no_prototypes: str = "no role train"
    needs_training: bool = True
    wants_encoder_models: bool = False
    routed: bool = False
    needs_labels: bool = True
    noun: str = "windows"

    def lacks(self, state: State) -> str:
        """What an online device lacks; empty if it lacks nothing."""
        if state.refuses is not None:
            return f"{REFUSES}: {state.refuses}"
        if not trains(state):
            if "prototype" not in state.roles:
                return "no role train"
            if self.no_prototypes:
                return self.no_prototypes
        if (self.routed or not trains(state)) and not set(self.modalities) & set(state.modalities):
            return f"no modality of the task: {', '.join(self.modalities)}"[:200]
        if state.windows < self.min_windows:
            labelled = "labelled " if self.needs_labels or not trains(state) else ""
            return f"{state.windows} of {self.min_windows} {labelled}{self.noun}"
        return ""


def trains(state: State) -> bool:
    """Whether a device trains; its role ``prototype`` is ignored then."""
    return "train" in state.roles


def sends_prototypes_alone(state: State) -> bool:
    """Whether a device can learn only by prototypes."""
    return "prototype" in state.roles and not trains(state)


def noun_of(task: Task) -> str:
    """What a task is learned from, in the plural: windows, or triples of knowledge graphs."""
    return KINDS["windows" if task.graph is None else "graph"].noun


def requirements_of(task: Task, no_encoder_models: str) -> Requirements:
    """The requirements of a task.

    Args:
        task: names a method; one that is not registered here has no role ``prototype``.
        no_encoder_models: why there are no encoder models; empty if they are ready.
    """
    spec = methods().get(task.method)
    routed = spec is not None and spec.routed
    if spec is None or not spec.prototype_role:
        none = f"no role train; method {task.method!r} has no use for role prototype"
        needs_labels = spec is None or spec.needs_labels
        return Requirements(
            task.rounds.min_windows,
            task.input_names,
            none,
            routed=routed,
            needs_labels=needs_labels,
            noun=noun_of(task),
        )
    return Requirements(
        task.rounds.min_windows,
        task.input_names,
        f"waits for the encoder models: {no_encoder_models}" if no_encoder_models else "",
        needs_training=spec.trains(spec.configure(task)),
        wants_encoder_models=True,
        routed=routed,
        needs_labels=spec.needs_labels,
        noun=noun_of(task),
    )


def profile_of(task: Task, state: State) -> Profile:
    """What a device reads and predicts by its state, limited to the task's modalities and targets."""
    targets = (LABEL,) if state.targets is None else state.targets
    return Profile(
        tuple(name for name in task.input_names if name in state.modalities),
        tuple(name for name in task.target_names if name in targets),
    )
