"""What the sums that this device is in tell of it, over all of its tasks, under any name. One file.

A sum in which devices share noise costs a rho of concentrated differential privacy
(:mod:`models.privacy.shared_noise`), and rhos add. A sum is charged before its vector is masked; a further
attempt from the same version is none, because only one sum from a version can be opened. An unreadable
account is not zero: no task with noise of devices gets anything until a person has resolved it.
"""

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from models.privacy.shared_noise import SharedNoise, zcdp_epsilon
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.secure_aggregation.attempt import Attempt
from runtime.storage.files import disk_errors, write_atomic

FILE: Final = "noise_account.json"
_LOCK: Final = threading.Lock()
"""Of the services of all tasks in this process: they share the file."""
_MOST_TASKS: Final = 256
"""Tasks whose last version is known; of one before these, a repeated attempt would be charged again."""


@dataclass(frozen=True)
class Spent:
    """The content of the file.

    Attributes:
        rho: of all sums.
        sums: their number.
        bases: task -> the version from which its last sum starts, the newest task last.
    """

    rho: float = 0.0
    sums: int = 0
    bases: dict[str, str] = field(default_factory=dict)

    def after(self, attempt: Attempt, noise: SharedNoise) -> "Spent":
        """With the sum of an attempt."""
        if self.bases.get(attempt.task) == attempt.base:
            return self
        others = [(task, base) for task, base in self.bases.items() if task != attempt.task]
        bases = dict([*others[1 - _MOST_TASKS :], (attempt.task, attempt.base)])
        return replace(self, rho=self.rho + noise.rho(noise.devices), sums=self.sums + 1, bases=bases)


class NoiseAccount:
    """The account's file. Synchronous.

    Args:
        path: of the file.
        most: ``privacy.max_epsilon`` of this device; None: no limit.
        delta: of the device's own epsilon.
    """

    def __init__(self, path: Path, most: float | None, delta: float) -> None:
        self._path, self._most, self._delta = path, most, delta

    def require(self, attempt: Attempt, noise: SharedNoise) -> None:
        """Check that one more sum stays within the device's limit.

        Raises:
            Refused: it does not.
            Misconfigured: the account is damaged.
            Transient: it cannot be read now.
        """
        self._after(self.read(), attempt, noise)

    def _after(self, spent: Spent, attempt: Attempt, noise: SharedNoise) -> Spent:
        after = spent.after(attempt, noise)
        epsilon = zcdp_epsilon(after.rho, self._delta)
        if self._most is not None and epsilon > self._most:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"{attempt.words}: this device's updates are in {spent.sums} sums, of all its tasks, and one "
                f"more would bring epsilon to {epsilon:.4g} (delta {self._delta:g}); at most "
                f"{self._most:g} is allowed (privacy.max_epsilon of this device)",
            )
        return after

    def charge(self, attempt: Attempt, noise: SharedNoise) -> None:
        """Add the sum of an attempt, before its vector is masked.

        Raises:
            Refused, Misconfigured, Transient: as :meth:`require`; or it cannot be written.
        """
        with _LOCK:
            before = self.read()
            after = self._after(before, attempt, noise)
            if after is not before:
                with disk_errors(self._path):
                    write_atomic(self._path, json.dumps(asdict(after)).encode())

    def read(self) -> Spent:
        """The account on the disk; an empty one if there is none.

        Raises:
            Misconfigured: it is damaged, or access is denied.
            Transient: it cannot be read now.
        """
        try:
            with disk_errors(self._path):
                data = self._path.read_bytes() if self._path.exists() else None
            return Spent() if data is None else _spent(json.loads(data))
        except OSError as error:
            raise Transient(f"{self._path}: {error}") from None
        except (ValueError, TypeError, LookupError):
            raise Misconfigured(
                f"{self._path}: the account of this device's noise is damaged; earlier sums are unknown: no "
                "task whose devices add noise gets anything. Put the file back from a backup, or remove it"
            ) from None

    def words(self) -> dict[str, Any]:
        """For ``lichen agent status``; empty before the first sum. Raises as :meth:`read`."""
        spent = self.read()
        if not spent.sums:
            return {}
        epsilon = float(f"{zcdp_epsilon(spent.rho, self._delta):.4g}")
        return {"sums": spent.sums, "epsilon": epsilon, "delta": self._delta}


def _spent(content: dict[str, Any]) -> Spent:
    found = Spent(float(content["rho"]), int(content["sums"]), dict(content["bases"]))
    if not 0 <= found.rho < float("inf") or found.sums < 0:
        raise ValueError("negative, or not finite")
    return found
