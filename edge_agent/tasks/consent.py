"""What this device has consented to: the protection of each task when it was last taken.

A coordinator that weakens the protection of a running task gets no further update of this device, until a
person consents anew (``lichen agent consent``). The first announcement of a task is taken if it meets the
floors (:mod:`edge_agent.tasks.privacy_floors`).
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge_agent.tasks.privacy_floors import Unprotected
from models.privacy.shared_noise import shared_noise
from protocol.errors import Misconfigured, Transient
from protocol.tasks.folding import LocalPrivacy, Privacy
from protocol.tasks.task import Task
from runtime.storage.files import disk_errors, remove, write_atomic

CONSENT_FILE: Final = "consent.json"
_LARGER_IS_WEAKER: Final = ("clip", "delta", "max_epsilon", "rate")
_MOST_TASKS: Final = 1024
"""The newest are known; of one before these the floors alone are asked, as of a task of another name."""
_TABLES: Final[dict[str, type[Privacy] | type[LocalPrivacy]]] = {
    "privacy": Privacy,
    "local_privacy": LocalPrivacy,
}


def weakening(
    before: Privacy | LocalPrivacy | None, after: Privacy | LocalPrivacy | None, table: str = "privacy"
) -> str:
    """How a table protects less than the one before, in words; empty: it does not."""
    if before is None:
        return ""
    if after is None:
        return f"its table [{table}] is gone"
    if after.noise_multiplier < before.noise_multiplier:
        return _changed(table, "noise_multiplier", before.noise_multiplier, after.noise_multiplier)
    if getattr(before, "sampling", "none") == "poisson" and getattr(after, "sampling", "none") == "none":
        return _changed(table, "sampling", "poisson", "none")
    for key in _LARGER_IS_WEAKER:
        old, new = getattr(before, key, None), getattr(after, key, None)
        # without a limit there may be any epsilon; a rate of none is no sampling, which was looked at
        gone = key == "max_epsilon" and old is not None and new is None
        if gone or (old is not None and new is not None and new > old):
            return _changed(table, key, old, new)
    return ""


def _changed(table: str, key: str, before: object, after: object) -> str:
    return f"{table}.{key} was {before} and is {'gone' if after is None else after}"


def _weaker(known: Mapping[str, Any], task: Task) -> str:
    """How a task's tables protect less than those of a record, in words; empty: they do not."""
    for table, kind in _TABLES.items():
        told = known.get(table)  # a record from before the table has none
        before = None if told is None else kind.model_validate(told)
        if words := weakening(before, getattr(task, table), table):
            return words
    return ""


def _exposing(sharers: int | None, task: Task) -> str:
    """How a task protects less against the coordinator than before, in words; empty: it does not.

    Args:
        sharers: how many devices shared the noise; None: the coordinator added it.
        task: as it is now, with ``[privacy]``.
    """
    if sharers is None:
        return ""
    noise = shared_noise(task)
    if noise is None:
        return "devices add the noise no longer, its table [secure_aggregation] is gone"
    if noise.devices > sharers:
        changed = f"was {sharers} and is {noise.devices}"
        return f"secure_aggregation.min_devices {changed}, so each device adds less noise"
    return ""


class ConsentRecord:
    """The file of one task's folder. Synchronous.

    Args:
        file: in ``state_dir``.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def require(self, task: Task) -> None:
        """Check that a task protects as much as it did when this device took it.

        Raises:
            Unprotected: it does not; the message says what to do.
            Misconfigured: the file is damaged, or access is denied.
        """
        taken = self._read()
        known = taken.get(task.name)
        if known is None:
            return
        if words := _weaker(known, task) or _exposing(known.get("sharers"), task):
            raise Unprotected(
                f"task {task.name!r} protects this device less than when it was taken: {words}. Consent anew "
                "with `lichen agent consent`, and restart the agent"
            )

    def withheld(self, name: str) -> str:
        """Why this device gives the task nothing since its last announcement; empty: it does."""
        try:
            return str(self._read().get(name, {}).get("withheld", ""))
        except Misconfigured as error:
            return str(error)

    def begin(self, task: Task) -> str:
        """Why the task of the last run gets nothing; empty: it does. Records one from before this file."""
        try:
            if task.name not in self._read():
                self.taken(task)
        except (Transient, Misconfigured) as error:
            return str(error)
        return self.withheld(task.name)

    def taken(self, task: Task) -> None:
        """Record that the device takes the task as it is announced; raises as a disk does."""
        tables = {table: getattr(task, table) for table in _TABLES}
        told = {table: None if one is None else one.model_dump(mode="json") for table, one in tables.items()}
        noise = shared_noise(task)
        sharers = {} if noise is None else {"sharers": noise.devices}
        # without the further table the record is that of an agent from before it
        self._write(task.name, {key: one for key, one in told.items() if one or key == "privacy"} | sharers)

    def withhold(self, name: str, words: str) -> None:
        """Record that the device gives the task nothing, also after a restart; raises as a disk does."""
        known = self._read().get(name, {"privacy": None})
        self._write(name, {**known, "withheld": words})

    def forget_all(self) -> dict[str, str]:
        """A person consents: the next announcement is taken as it is.

        Returns:
            Task -> why it got nothing; empty: it did.

        Raises:
            Misconfigured: access is denied.
            Transient: the disk is full.
        """
        try:
            known = {name: str(one.get("withheld", "")) for name, one in self._read().items()}
        except Misconfigured:
            known = {}  # damaged: consent begins anew
        remove(self._file)
        return known

    def _write(self, name: str, record: dict[str, Any]) -> None:
        with self._lock, disk_errors(self._file):
            known = self._read()
            if known.get(name) != record:
                others = [(other, one) for other, one in known.items() if other != name]
                newest = dict([*others[1 - _MOST_TASKS :], (name, record)])
                write_atomic(self._file, json.dumps(newest).encode())

    def _read(self) -> dict[str, Any]:
        with disk_errors(self._file):
            try:
                found = json.loads(self._file.read_bytes())
                _ = {name: one["privacy"] for name, one in found.items()}
            except FileNotFoundError:
                return {}
            except (ValueError, TypeError, KeyError, AttributeError):
                raise Misconfigured(
                    f"{self._file}: damaged: it is unknown which protection this device consented to. Put it "
                    "back from a backup, or consent anew: lichen agent consent"
                ) from None
        return dict(found)
