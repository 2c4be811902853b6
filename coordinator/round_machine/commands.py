"""Commands of the round machine: the work that it asks for. Pure."""

from typing import Literal

from protocol.base import Wire


class Initialise(Wire):
    """Make version 0."""


class Select(Wire):
    """Select devices for this attempt and answer with ``Selected``."""

    round: int
    attempt: int


class OfferRound(Wire):
    """Offer the open round to its cohort."""


class Aggregate(Wire):
    """Fold the journal's updates of these devices into version ``round``."""

    round: int
    devices: tuple[str, ...]


class Evaluate(Wire):
    """Evaluate that version."""

    version: int


class Export(Wire):
    """Export and announce that version."""

    version: int


class RecordAttempt(Wire):
    """An attempt is over: write its outcome for the history."""

    round: int
    attempt: int
    outcome: Literal["quorum", "deadline", "away", "given_up"]


class Finish(Wire):
    """All rounds are over."""


Command = Initialise | Select | OfferRound | Aggregate | Evaluate | Export | RecordAttempt | Finish
