"""Rollouts as pages and programs see them; times in Unix seconds."""

from typing import Literal

from coordinator.status.round_records import Shown

Standing = Literal["good", "open", "bad"]
"""A gate is passed, may still be passed, or has failed."""


class ReleaseRow(Shown):
    """A version and the digests of its bundles."""

    version: int
    bundles: tuple[str, ...]


class RolloutRow(Shown):
    """One rollout of the list. ``why``: it is paused or over; ``devices``: that have a pointer to it."""

    number: int
    version: int
    bundles: tuple[str, ...]
    phase: str
    why: str
    began: float
    over: float | None
    stage: int
    stages: tuple[str, ...]


class StageRow(Shown):
    """One stage. ``name``: canary or wave; ``who``: the devices that it adds."""

    name: str
    who: str
    state: Literal["done", "now", "next"]
    members: int
    committed: int
    failed: int
    trial: int
    waiting: int
    silent: int
    barred: int
    left_out: int


class GateReading(Shown):
    """A gate with its present value against its limit, as text; ``share``: how far it is, 0 to 1."""

    name: str
    value: str
    limit: str
    standing: Standing
    share: float | None = None


class TrialReading(Shown):
    """A measure of the devices' trials: the worst value, whose it is, and the limit; None: not required."""

    name: str
    worst: float
    device: str
    limit: float | None
    standing: Standing


class RolloutDeviceRow(Shown):
    """A device of a rollout.

    Attributes:
        phase: ``waiting``, ``trial``, ``committed``, ``rolled_back`` or ``refused``; ``words``: as text.
        hindered: why it cannot run the candidate yet, as far as it is online.
        online: None: not known.
        times: when each phase was first reported.
    """

    device: str
    stage: int
    stage_name: str
    phase: str
    words: str
    why: str
    seen: bool
    barred: bool
    left_out: bool
    measures: dict[str, float]
    times: dict[str, float]
    online: bool | None = None
    hindered: str = ""


class StoryRow(Shown):
    """A line of a rollout's log."""

    wall: float
    what: str
    words: str


class RolloutDetail(Shown):
    """One rollout.

    Attributes:
        since: when the stage began, or went on after a pause; ``until``: its deadline, while it is open.
        good_since: since when enough devices of the stage have committed; ``soak_s``: they must stay so.
        devices: all, by stage and name.
        trial: the worst of the devices' measures.
        trial_limits: what each device asks of the version; empty: what its own settings say.
    """

    row: RolloutRow
    open: bool
    since: float
    until: float | None
    good_since: float | None
    soak_s: float
    deadline_s: float
    paused: float | None
    stages: tuple[StageRow, ...]
    gates: tuple[GateReading, ...]
    trial: tuple[TrialReading, ...]
    trial_limits: dict[str, float]
    devices: tuple[RolloutDeviceRow, ...]
    story: tuple[StoryRow, ...]
    first: int
    last: int


class FailedRow(Shown):
    """A release that failed; it is not rolled out again by itself."""

    version: int
    bundles: tuple[str, ...]
    why: str
    wall: float


class RolloutList(Shown):
    """All that is decided.

    ``waiting``: the release whose turn comes next; ``refusers``: devices that did not keep the last versions,
    ``left_out``: those whose refusals are ignored now.
    """

    mode: str
    serial: int
    stable: ReleaseRow | None
    newest: ReleaseRow | None
    waiting: ReleaseRow | None
    rollouts: tuple[RolloutRow, ...]
    failed: tuple[FailedRow, ...]
    refusers: int
    left_out: tuple[str, ...]
