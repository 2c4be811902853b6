"""What the sums that this device is in tell of it, over all of its tasks, under any name. One file.

A sum in which devices share noise costs a rho of concentrated differential privacy
(:mod:`models.privacy.shared_noise`), and rhos add. Each attempt is charged before its vector is masked, also
one that failed as far as this device knows: its neighbours can open a sum without its answer. It counts the
noise of as many devices as it can be sure of, whatever the task says. An unreadable account is not zero: no
task with noise of devices gets anything until a person has resolved it.
"""

import json
import os
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from models.privacy.shared_noise import SharedNoise, zcdp_epsilon
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.neighbours import threshold_of
from runtime.storage.files import disk_errors, write_atomic

FILE: Final = "noise_account.json"
_LOCK: Final = threading.Lock()
"""Of the services of all tasks in this process: they share the file."""
_MOST_TASKS: Final = 256
"""Tasks whose last attempt is known; of one before these, a repeated attempt would be charged again."""
_MOST_RHO: Final = 1e9
"""Beyond it nothing is protected, and a file that says so is damaged."""


def fewest_devices(noise: SharedNoise, neighbours: int, devices: int) -> int:
    """The fewest devices in a sum with a device: its honest neighbours open no smaller one.

    Args:
        noise: of the task, which names the fewest devices of a sum.
        neighbours: of this device in the roster.
        devices: in the roster, as it says.
    """
    if neighbours == devices - 1:  # each of them sees how many are in the sum
        return noise.devices
    return min(noise.devices, threshold_of(neighbours) + 1)


@dataclass(frozen=True)
class Spent:
    """The content of the file.

    Attributes:
        rho: of all attempts.
        sums: their number.
        last: task -> digest of the last attempt that was charged, the newest task last.
        fewest: task -> the devices whose noise counted in that attempt.
    """

    rho: float = 0.0
    sums: int = 0
    last: dict[str, str] = field(default_factory=dict)
    fewest: dict[str, int] = field(default_factory=dict)

    def after(self, task: str, digest: str, noise: SharedNoise, fewest: int) -> "Spent":
        """With an attempt, unless it is charged already."""
        if self.last.get(task) == digest:
            return self
        names = [name for name in self.last if name != task][1 - _MOST_TASKS :]
        return replace(
            self,
            rho=self.rho + noise.rho(fewest),
            sums=self.sums + 1,
            last={name: self.last[name] for name in names} | {task: digest},
            fewest={name: self.fewest.get(name, 1) for name in names} | {task: fewest},
        )


class NoiseAccount:
    """The account's file. Synchronous.

    Args:
        path: of the file.
        most: ``privacy.max_epsilon`` of this device; None: no limit.
        delta: of the device's own epsilon.
    """

    def __init__(self, path: Path, most: float | None, delta: float) -> None:
        self._path, self._most, self._delta = path, most, delta

    def refusal(self, task: str, noise: SharedNoise) -> str:
        """Why this device can be in no further sum of a task, in words; empty: it can."""
        try:
            spent = self.read()
            self._after(spent, task, "", noise, min(noise.devices, spent.fewest.get(task, noise.devices)))
        except Refused as refused:
            return refused.detail
        except LichenError as error:
            return str(error)
        return ""

    def charge(self, attempt: Attempt, noise: SharedNoise, fewest: int) -> None:
        """Add an attempt, before its vector is masked; `fewest``: by :func:`fewest_devices`.

        Raises:
            Refused: it exceeds the device's limit.
            Misconfigured: the account is damaged, or access is denied.
            Transient: it cannot be read or written now.
        """
        with _LOCK:
            before = self.read()
            after = self._after(before, attempt.task, attempt.digest.hex(), noise, fewest)
            if after is not before:
                with disk_errors(self._path):
                    write_atomic(self._path, json.dumps(asdict(after)).encode())

    def _after(self, spent: Spent, task: str, digest: str, noise: SharedNoise, fewest: int) -> Spent:
        after = spent.after(task, digest, noise, fewest)
        epsilon = zcdp_epsilon(after.rho, self._delta)
        if self._most is None or epsilon <= self._most or after is spent:
            return after
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"task {task!r}: this device has masked {spent.sums} updates, of all its tasks; one more, with "
            f"the noise of {fewest} devices that it can be sure of, would bring epsilon to {epsilon:.4g} (at "
            f"delta {self._delta:g}); at most {self._most:g} is allowed (privacy.max_epsilon of this device)",
        )

    def read(self) -> Spent:
        """The account on the disk; an empty one if there is none.

        Raises:
            Misconfigured: it is damaged, or access is denied.
            Transient: it cannot be read now.
        """
        try:
            if not os.path.lexists(self._path):
                return Spent()
            with disk_errors(self._path):
                return _spent(json.loads(self._path.read_bytes()))
        except OSError as error:
            raise Transient(f"{self._path}: {error}") from None
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError):
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
    last = {str(name): str(digest) for name, digest in content["last"].items()}
    fewest = {name: int(content["fewest"][name]) for name in last}
    found = Spent(float(content["rho"]), int(content["sums"]), last, fewest)
    if not 0 <= found.rho < _MOST_RHO or found.sums < 0 or min(fewest.values(), default=1) < 1:
        raise ValueError("out of range")
    return found
