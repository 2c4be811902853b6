"""Rounds as pages and programs see them; times in Unix seconds."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from coordinator.secure_aggregation.report import SecureReport


class Shown(BaseModel):
    """A record for pages and programs."""

    model_config = ConfigDict(frozen=True)


class RoundRow(Shown):
    """One round of the list; times in Unix seconds.

    Attributes:
        selected: devices of the last attempt; ``delivered``: whose updates are here.
        folded: devices whose updates the version is made of.
        outcome: of the last attempt: ``quorum``, ``deadline``, ``away``, ``given_up``; empty: it is open.
        version_wall: when the version was made; None: not yet.
        bytes_up: received since the version before; ``bytes_down``: sent.
        secure: the stage of the newest attempt of a secure round; empty: its updates are plain.
    """

    round: int
    attempts: int
    policy: str
    outcome: str
    opened_wall: float
    closed_wall: float | None
    selected: int
    delivered: int
    folded: int | None
    version_wall: float | None
    bytes_up: int | None
    bytes_down: int | None
    metrics: dict[str, float]
    trouble: str
    secure: str = ""


class AttemptRow(Shown):
    """One opening of a round. ``passed``: the next candidates, and why they were not selected."""

    attempt: int
    policy: str
    outcome: str
    opened_wall: float
    closed_wall: float | None
    selected: int
    passed: dict[str, str]


StepKind = Literal["opened", "first", "quorum", "closed", "folded", "evaluated", "exported"]


class RoundStep(Shown):
    """One step of a round. ``attempt``: of ``opened`` and ``closed``."""

    kind: StepKind
    wall: float
    words: str
    attempt: int | None = None


DeviceStatus = Literal["delivered", "refused", "awaited", "missing"]


class RoundDevice(Shown):
    """A device of a round. ``why``: it was selected; ``refusal``: why its update does not count."""

    device: str
    status: DeviceStatus
    why: str = ""
    refusal: str = ""
    wall: float | None = None
    size: int | None = None


class DeviceUpdate(Shown):
    """What came with a device's update."""

    samples: int
    metrics: dict[str, float]
    quality: dict[str, float]
    local: dict[str, float]
    blobs: int | None


class RoundDetail(Shown):
    """One round. ``devices``: all that were selected or delivered, by name.

    ``curve``: seconds since the opening, and how many updates were here; a few hundred points. ``secure``:
    how each attempt of a secure round stands.
    """

    row: RoundRow
    open: bool
    phase: str
    quorum: int | None
    attempts: tuple[AttemptRow, ...]
    steps: tuple[RoundStep, ...]
    devices: tuple[RoundDevice, ...]
    counts: dict[DeviceStatus, int]
    update_bytes: int
    curve: tuple[tuple[float, int], ...]
    weighing: dict[str, Any] | None
    secure: tuple[SecureReport, ...] = ()
    first: int
    last: int
