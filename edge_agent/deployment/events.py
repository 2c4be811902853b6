"""What the machine of a device's rollout is about: phases, events, and what is to be done. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.deployment.ports import Handle
from edge_agent.deployment.record import DeploymentRecord, InstalledBundle
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.messages import ModelPointer
from protocol.rollout import Trial


class DeploymentPhase(StrEnum):
    """Of a device."""

    NONE = "none"
    """It has no model."""
    FETCHED = "fetched"
    """A bundle is on trial and does not answer yet: the agent has pulled it, or begins anew."""
    ON_TRIAL = "on_trial"
    """It answers; the one before answers beside it, and only its answers are compared."""
    COMMITTED = "committed"
    """What runs has passed its trial."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """Where a device stands. ``answers``: the model on trial is loaded and answers."""

    book: DeploymentRecord
    answers: bool = False

    @property
    def phase(self) -> DeploymentPhase:
        """Of the table."""
        if self.book.trial is not None:
            return DeploymentPhase.ON_TRIAL if self.answers else DeploymentPhase.FETCHED
        return DeploymentPhase.NONE if self.book.committed is None else DeploymentPhase.COMMITTED


@dataclass(frozen=True, slots=True)
class Started:
    """The agent begins; first of all events. ``max_starts``: with a model on trial."""

    max_starts: int


@dataclass(frozen=True, slots=True)
class Pointed:
    """The coordinator points to a bundle, and what vouches for it was verified.

    ``epoch``: whose signatures speak now (``edge_agent.trust.updater``).
    """

    pointer: ModelPointer
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A bundle is here, whole, and fits. ``rollout``: the rules came with the pointer."""

    model: InstalledBundle
    rules: Trial
    rollout: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model on trial was loaded and tried once, in a process of its own."""

    model: Handle


@dataclass(frozen=True, slots=True)
class BundleRefused:
    """It could not be."""

    why: str


@dataclass(frozen=True, slots=True)
class PointerRejected:
    """What was pointed to never was on trial: not signed, not whole, too old, or it does not fit."""

    model: InstalledBundle
    why: str


@dataclass(frozen=True, slots=True)
class DeploymentTick:
    """Seconds have passed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """The model that runs cannot be run any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The bundle on trial is not for this device any more: another task."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A bundle's folder is not what it was."""

    digest: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The agent ends in order: this start is no sign of a bad model."""


Event = (
    Started
    | Pointed
    | Fetched
    | Loaded
    | BundleRefused
    | PointerRejected
    | BatchObservation
    | DeploymentTick
    | Crashed
    | Withdrawn
    | Damaged
    | Stopped
)
"""``BatchObservation``: a batch was answered, or was not."""


class Action(StrEnum):
    """What is to be done, in this order."""

    WRITE = "write the book"
    """On the disk before what comes after it."""
    LOAD = "load the model on trial"
    KEEP = "end the one before"
    BACK = "answer with the one before"
    TIDY = "remove what is not needed"


@dataclass(frozen=True, slots=True)
class Swap:
    """Answer with this model, and run the one before beside it."""

    model: Handle


@dataclass(frozen=True, slots=True)
class FetchBundle:
    """Pull and check what was pointed to."""

    pointer: ModelPointer


@dataclass(frozen=True, slots=True)
class TooOld:
    """Refuse what was pointed to."""

    why: str


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Nothing is to be done; why, in words."""

    words: str


Command = Action | Swap | FetchBundle | TooOld | NothingToDo
Outcome = tuple[DeploymentStatus, tuple[Command, ...]]
