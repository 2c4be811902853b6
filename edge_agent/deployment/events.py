"""Phases, events and commands of the device's rollout state machine. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.deployment.ports import Handle
from edge_agent.deployment.record import DeploymentRecord, InstalledBundle
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.messages import ModelPointer
from protocol.rollout import Trial


class DeploymentPhase(StrEnum):
    """Phase of a device's rollout."""

    NONE = "none"
    """The device has no model."""
    FETCHED = "fetched"
    """A bundle is on trial and not active yet: it was just fetched, or the agent has restarted."""
    ON_TRIAL = "on_trial"
    """It is active; the former model answers beside it, only for comparison."""
    COMMITTED = "committed"
    """The active model has passed its trial."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """Status of a device. ``answers``: the model on trial is loaded and active."""

    record: DeploymentRecord
    answers: bool = False

    @property
    def phase(self) -> DeploymentPhase:
        """The phase in the table."""
        if self.record.trial is not None:
            return DeploymentPhase.ON_TRIAL if self.answers else DeploymentPhase.FETCHED
        return DeploymentPhase.NONE if self.record.committed is None else DeploymentPhase.COMMITTED


@dataclass(frozen=True, slots=True)
class Started:
    """The agent starts; the first of all events. ``max_starts``: limit with one model on trial."""

    max_starts: int


@dataclass(frozen=True, slots=True)
class Pointed:
    """A pointer whose signature was verified. ``epoch``: of its signer (``edge_agent.trust.updater``)."""

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
    """The model on trial was loaded, and tried once in a process of its own."""

    model: Handle


@dataclass(frozen=True, slots=True)
class BundleRefused:
    """The model on trial could not be loaded."""

    why: str


@dataclass(frozen=True, slots=True)
class PointerRejected:
    """An announced bundle was rejected before a trial: unsigned, damaged, too old, or it does not fit."""

    model: InstalledBundle
    why: str


@dataclass(frozen=True, slots=True)
class DeploymentTick:
    """Time has passed, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """The active model cannot run any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The bundle on trial is no longer for this device: the task changed."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A bundle's folder is damaged."""

    digest: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The agent stops normally: this start does not count against the model."""


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
"""Or a ``BatchObservation``: a batch was answered, or failed."""


class Action(StrEnum):
    """Commands, in this order."""

    WRITE = "write the record"
    """Written to disk before the commands after it."""
    LOAD = "load the model on trial"
    KEEP = "end the former model"
    BACK = "activate the former model"
    TIDY = "remove unused bundles"


@dataclass(frozen=True, slots=True)
class Swap:
    """Activate this model, and run the former one beside it."""

    model: Handle


@dataclass(frozen=True, slots=True)
class FetchBundle:
    """Fetch and check the announced bundle."""

    pointer: ModelPointer


@dataclass(frozen=True, slots=True)
class TooOld:
    """Refuse the announced bundle."""

    why: str


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Do nothing; the reason as text."""

    words: str


Command = Action | Swap | FetchBundle | TooOld | NothingToDo
Outcome = tuple[DeploymentStatus, tuple[Command, ...]]
