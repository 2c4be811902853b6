"""The rounds of a task: how many, when one opens and closes, and which devices it selects."""

from typing import Annotated

from pydantic import Field

from protocol.base import Name, Share, Wire


class Bandit(Wire):
    """Selection by a discounted upper confidence bound: ``coordinator.selection.policies.bandit``."""

    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Discount of earlier observations, by round."""
    explore: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of the exploration term for rarely seen devices and experts; 1 in the paper."""


class Rounds(Wire):
    """When a round opens and closes. Quorum is over the *set* of selected devices that have delivered."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 10
    deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 120.0
    devices_per_round: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """None selects every eligible device that is online."""
    selection: Name = "coverage"
    """Selection policy if there are more: a module of ``coordinator.selection.policies``."""
    bandit: Bandit = Bandit()
    """Options of ``selection = "bandit"``."""
    quorum: Share = 1.0
    """The round closes early after this share of the selected devices has delivered."""
    min_devices: Annotated[int, Field(ge=1, le=100_000)] = 1
    """With fewer at the deadline the round is abandoned and opened again."""
    patience: Annotated[int, Field(ge=0, le=100_000)] = 10
    """The rounds end after this many versions in a row without a gain; 0: never. Gains are in the metric of
    ``[evaluation]`` at the coordinator, whose windows then are validation data; without one, versions gain
    while they still move."""
    gain: Share = 0.002
    """An improvement of accuracy (or mrr) that counts as a gain."""
    min_windows: Annotated[int, Field(ge=1, le=10_000_000)] = 32
    """An eligible device has at least this many windows to learn from: labelled ones if the method needs
    labels on devices."""
    answer_within_s: Annotated[float, Field(ge=0, le=7 * 86400)] | None = None
    """The selected devices begin within this time after a round opens, each at its own moment; at most half
    of ``deadline_s``. None: 5 ms a device."""
