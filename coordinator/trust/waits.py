"""What is wrong with the signatures, for ``lichen coordinator status --why``."""

import contextlib
from collections.abc import Iterator

from coordinator.config import CoordinatorSettings
from coordinator.trust.repository import AHEAD_S, ahead_words
from coordinator.trust.vouching import repository_of
from protocol.errors import LichenError
from runtime.waits import Wait


def waits(settings: CoordinatorSettings, now: float) -> Iterator[Wait]:
    """At most one.

    Args:
        settings: whose ``state_dir/trust`` is read.
        now: unix seconds.
    """
    with contextlib.suppress(LichenError):  # lichen coordinator trust status says what is damaged
        repository = repository_of(settings)
        ahead_s = repository.ahead_s(now) if repository.exists else 0.0
        if ahead_s > AHEAD_S:
            yield Wait("signatures", ahead_words(ahead_s), None, now + ahead_s, "the clock has caught up")
