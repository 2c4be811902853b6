"""A device's share of the noise: its key, how many sums it was asked for, and what it refuses. Pure."""

from dataclasses import replace
from typing import Final

from edge_agent.secure_aggregation.events import MaskingRules, MaskingState
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.keys import KEY_BYTES, Secrets

_MOST_TASKS: Final = 256
"""Tasks whose sums are counted, beside the present one."""


def key_of(rules: MaskingRules, secrets: Secrets, attempt: Attempt) -> tuple[bytes, int] | None:
    """The key of this device's noise in an attempt, and its parameter; None: the task asks for no noise.

    Raises:
        Refused: the secrets have no key.
    """
    if rules.noise is None:
        return None
    if len(secrets.noise) != KEY_BYTES:
        raise Refused(
            Reason.DUPLICATE,
            f"{attempt.words}: its secrets are of a release without noise of devices; this device waits for "
            "the next attempt",
        )
    return secrets.noise, rules.noise.sigma


def counted(rules: MaskingRules, state: MaskingState, attempt: Attempt) -> MaskingState:
    """The state once a vector with noise will be sent.

    Only one sum from a version can be opened, so a further attempt from the same one does not count.
    """
    if rules.noise is None or state.counted == attempt.base:
        return state
    others = [(name, count) for name, count in state.releases.items() if name != attempt.task]
    releases = dict(others[-_MOST_TASKS:]) | {attempt.task: state.releases.get(attempt.task, 0) + 1}
    return replace(state, counted=attempt.base, releases=releases)


def check_spent(rules: MaskingRules, state: MaskingState, attempt: Attempt) -> None:
    """Check that one more sum stays within the limit of epsilon, whatever the coordinator counts.

    Raises:
        Refused: it does not.
    """
    if rules.noise is None or rules.releases is None or state.counted == attempt.base:
        return
    spent = state.releases.get(attempt.task, 0)
    if spent >= rules.releases:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{attempt.words}: this device's updates are in {spent} sums of the task, and one more would "
            "exceed the task's privacy.max_epsilon",
        )


def check_shared(rules: MaskingRules, state: MaskingState, attempt: Attempt, delivered: int) -> None:
    """Check that enough devices have added noise, where this device sees all of them.

    Where it sees only its neighbours, the threshold of those is what it can check.

    Raises:
        Refused: there are too few.
    """
    devices = 0 if state.roster is None else state.roster.devices
    if rules.noise is None or len(state.keys) != devices - 1:
        return
    if delivered + 1 < rules.noise.devices:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{attempt.words}: the sum would be over {delivered + 1} devices; {rules.noise.devices} or more "
            "must share its noise",
        )
