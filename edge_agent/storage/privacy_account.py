"""The device's account of differential privacy on disk.

One account for all tasks, because they learn from the same streams: it outlives the tasks' names, their noise
and the windows. It is written before the update that it counts. An unreadable account does not count as zero:
until a person has resolved it, no task that protects its windows by noise sends anything, and no task at all
on a device with limits of its own.
"""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import LearnSettings
from edge_agent.storage.private_tensors import restored_on_error
from edge_agent.tasks.privacy_floors import noise_of
from edge_agent.windows.store_file import grid_digest
from models import registry
from models.contract import LocalResult, Tensors
from models.privacy.account import PREFIX, limit_in, rho_of
from models.privacy.device_account import DeviceAccount, from_json, to_json
from models.privacy.local.limits import SLACK, Limit, excess, limits_of, with_training
from protocol.errors import LichenError, Misconfigured, Transient
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from runtime.storage.files import disk_errors, write_atomic

_log = structlog.get_logger(__name__)
PRIVACY_FILE: Final = "privacy.json"


class PrivacyAccount:
    """The account's file. Synchronous, except :attr:`words`.

    Args:
        path: of the file.
        learn: the device's limits.
    """

    def __init__(self, path: Path, learn: LearnSettings) -> None:
        self._path = path
        self._learn = learn
        self._lock = threading.Lock()
        self.words: dict[str, Any] | None = None
        """For ``lichen agent status``; None before the first release."""
        try:
            self._read()
        except LichenError as error:
            _log.error("privacy_account_unreadable", why=str(error))

    def with_account(self, task: Task, private: Tensors) -> Tensors:
        """A task's private tensors, with the account that its releases are charged to.

        Charges among them are of an agent from before this file, and are added to it by the next release.

        Raises:
            Misconfigured: the account is damaged, or has no room for any release of this task.
            Transient: the disk cannot be read now.
        """
        own = {name: tensor for name, tensor in private.items() if not name.startswith(PREFIX)}
        learn = self._learn
        if not (noise_of(task) or learn.min_dp_noise or learn.max_epsilon is not None):
            return own
        account = self._read()
        if learn.max_epsilon is not None and account.without_noise:
            raise Misconfigured(
                f"updates of {', '.join(account.without_noise)} were sent without noise, so "
                f"epsilon is infinite; this device allows {learn.max_epsilon:g} (learn.max_epsilon). "
                f"Remove {self._path} and the windows collected so far to start again"
            )
        if task.local_privacy is not None:
            return own  # of a training no single window is charged; :meth:`refusal` decides before it
        store = _store_of(task)
        older = {name: tensor for name, tensor in private.items() if name not in own}
        account = account.with_older(store, task, older)
        return own | account.given(store, task, learn.max_epsilon, learn.dp_delta, learn.stretch_s)

    def refusal(self, task: Task, windows: int) -> str:
        """Why no further update from so many windows may be sent; empty: it may, or the task has no noise.

        Asked before a training; :meth:`charge` decides by the windows that did train.
        """
        if not windows or not noise_of(task):
            return ""
        try:
            if task.local_privacy is None:
                return self._closed(task)
            config = registry.method(task.method).configure(task)
            count = min(windows, self._learn.max_windows)
            after = with_training(self._read(), _store_of(task), task, config, count)
            return self._excess(task, after)
        except LichenError:  # :meth:`with_account` reports it, and the offer is tried again
            return ""

    def charge(self, task: Task, result: LocalResult) -> tuple[LocalResult, DeviceAccount | None]:
        """A result without the account's tensors, and the new account; None if it does not change.

        Raises:
            Misconfigured: the account is damaged, or this release would exceed the device's limit.
            Transient: the disk cannot be read now.
        """
        noise, learn = noise_of(task), self._learn
        spent = {name: tensor for name, tensor in result.private.items() if name.startswith(PREFIX)}
        own = {name: tensor for name, tensor in result.private.items() if name not in spent}
        try:
            before = self._read()
        except Misconfigured:
            if noise or learn.min_dp_noise or learn.max_epsilon is not None:
                raise
            return replace(result, private=own), None  # left for a person to repair
        after = before.after(_store_of(task), task, spent, noised=noise > 0)
        if words := self._excess(task, after):
            raise Misconfigured(f"{words}; it is not sent")
        metrics = result.metrics
        if noise:  # over all tasks; infinite ones are left out, because metrics are finite
            bounds = {
                "epsilon": after.epsilon_of_window(learn.dp_delta),
                "epsilon_moment": after.of_stretch(learn.stretch_s).epsilon(learn.dp_delta),
            }
            metrics = {**{key: value for key, value in metrics.items() if key not in bounds}, **bounds}
            metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
        return replace(result, private=own, metrics=metrics), after if after != before else None

    @contextmanager
    def saved(self, account: DeviceAccount | None) -> Iterator[None]:
        """Write the account, then run the body; a LichenError in it restores the former account.

        Raises:
            Transient, Misconfigured: the account cannot be written.
        """
        if account is None:
            yield
            return
        try:
            with restored_on_error(self._path, self._lock, LichenError):
                write_atomic(self._path, _text(account))
                self.words = self._in_words(account)
                yield
        except LichenError:
            self._read()
            raise

    def _read(self) -> DeviceAccount:
        """The account on disk; an empty one if there is none.

        Raises:
            Misconfigured: it is damaged, or access is denied.
            Transient: it cannot be read now.
        """
        try:
            with disk_errors(self._path):
                data = self._path.read_bytes() if self._path.exists() else None
            account = DeviceAccount() if data is None else _account(data)
        except OSError as error:
            raise Transient(f"{self._path}: {error}") from None
        except (ValueError, TypeError, KeyError):
            words = (
                f"{self._path}: the privacy account is damaged; earlier releases are unknown: no "
                "task that adds noise, and none here with learn.min_dp_noise or learn.max_epsilon, sends "
                "anything. Put the file back from a backup; or remove it and the windows collected so far"
            )
            self.words = {"account": words}
            raise Misconfigured(words) from None
        self.words = self._in_words(account) if account.stores else None
        return account

    def _closed(self, task: Task) -> str:
        """Why prototypes of no window, however new, are within the device's limit; empty: some are."""
        learn, account = self._learn, self._read()
        if learn.max_epsilon is None or account.without_noise:  # :meth:`with_account` says the latter
            return ""
        store = _store_of(task)
        given = account.given(store, task, learn.max_epsilon, learn.dp_delta, learn.stretch_s)
        if rho_of(noise_of(task)) * len(task.modality_names) <= limit_in(given) * SLACK:
            return ""
        return (
            f"task {task.name!r}: what was sent of this device's streams leaves no room for prototypes, not "
            f"even of new windows; at most epsilon {learn.max_epsilon:g} is allowed (learn.max_epsilon)"
        )

    def _excess(self, task: Task, after: DeviceAccount) -> str:
        """Which limit of the device or the task an account exceeds, in words; empty: none."""
        learn, limits = self._learn, limits_of(task)
        if learn.max_epsilon is not None:
            own = Limit(learn.max_epsilon, learn.dp_delta, learn.stretch_s, "learn.max_epsilon")
            limits = (own, *limits)
        return excess(task, after, limits)

    def _in_words(self, account: DeviceAccount) -> dict[str, Any]:
        """The account for people."""
        learn = self._learn
        delta, stretch = learn.dp_delta, f"{learn.stretch_s:g} s" if learn.stretch_s else "a moment"
        bounds = {
            "a window": account.epsilon_of_window(delta),
            stretch: account.of_stretch(learn.stretch_s).epsilon(delta),
        }
        words: dict[str, Any] = {
            unit: f"epsilon {epsilon:.3g} at delta {delta:g}, at most"
            if math.isfinite(epsilon)
            else "epsilon is infinite"
            for unit, epsilon in bounds.items()
        }
        words["tasks"] = list(account.tasks)
        if account.without_noise:
            words["sent without noise"] = list(account.without_noise)
        if learn.max_epsilon is not None:
            words[f"limit for {stretch}"] = f"epsilon {learn.max_epsilon:g} (learn.max_epsilon)"
        return words


def _store_of(task: Task) -> str:
    return "graph" if task.graph is not None else grid_digest(task)


def _text(account: DeviceAccount) -> bytes:
    content = json.dumps(to_json(account))
    return json.dumps({"sha256": digest(content.encode()), "account": content}).encode()


def _account(data: bytes) -> DeviceAccount:
    outer = json.loads(data)
    content = outer["account"]
    if outer["sha256"] != digest(content.encode()):
        raise ValueError("its checksum is wrong")
    return from_json(json.loads(content))
