"""The account of differential privacy of a whole device, over all tasks and window stores. Pure.

All of them are cut from the same streams, so their costs add up (:mod:`models.privacy.account`).
"""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from models.contract import Tensors
from models.privacy.account import LIMIT, Account, Ledger, overlap, rho_within, span_of
from protocol.tasks.task import Task

MAX_STORES: Final = 16
"""Window stores whose single windows are stored; of older ones, only the largest rho."""
MAX_TASKS: Final = 32


@dataclass(frozen=True)
class StoreAccount:
    """The account of one window store.

    Attributes:
        account: the cost of releases with noise.
        span_s: seconds of stream of one window, with its context.
        stride_s: between windows.
        tasks: tasks that released anything, the newest last.
        without_noise: those of them that released something without noise.
    """

    account: Account = field(default_factory=lambda: Account({}))
    span_s: float = 0.0
    stride_s: float = 0.0
    tasks: tuple[str, ...] = ()
    without_noise: tuple[str, ...] = ()

    @property
    def rho(self) -> float:
        """Of one of its windows."""
        return math.inf if self.without_noise else self.account.most

    def over(self, stretch_s: float) -> float:
        """The rho of all its windows that overlap a stretch of this length."""
        return self.rho * overlap(self.span_s, self.stride_s, stretch_s) ** 2 if self.rho else 0.0


@dataclass(frozen=True)
class DeviceAccount:
    """All window stores of a device, by the digest that names them; the last used at the end."""

    stores: Mapping[str, StoreAccount] = field(default_factory=dict)

    @property
    def rho_of_moment(self) -> float:
        """A bound for every moment."""
        return sum(one.over(0.0) for one in self.stores.values())

    @property
    def rho_of_window(self) -> float:
        """A bound for every window: charges of its own store, and of other stores' windows that touch it."""
        every = self.stores.items()
        return max(
            (
                one.rho + sum(other.over(one.span_s) for name, other in every if name != own)
                for own, one in every
            ),
            default=0.0,
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that released anything."""
        return tuple(dict.fromkeys(task for one in self.stores.values() for task in one.tasks))

    @property
    def without_noise(self) -> tuple[str, ...]:
        """The tasks that released something without noise."""
        return tuple(dict.fromkeys(task for one in self.stores.values() for task in one.without_noise))

    def given(self, store: str, task: Task, epsilon: float | None, delta: float) -> Tensors:
        """For a method's private tensors: its store's account, and the limit of a window's rho in all.

        Args:
            store: the window store's digest.
            task: says how windows are cut.
            epsilon: that no moment may exceed; None: the device sets no limit.
            delta: of that epsilon.
        """
        before = self.stores.get(store, StoreAccount())
        tensors = before.account.tensors()
        if epsilon is not None:
            elsewhere = sum(one.over(0.0) for name, one in self.stores.items() if name != store)
            left = max(0.0, rho_within(epsilon, delta) - elsewhere)
            left /= overlap(max(before.span_s, span_of(task)), task.window.stride_s) ** 2
            tensors[LIMIT] = np.array([left], np.float32)
        return tensors

    def after(self, store: str, task: Task, private: Tensors, *, noised: bool) -> "DeviceAccount":
        """The account after one release.

        Args:
            store: the window store's digest.
            task: the task of the release.
            private: the method's, with its charges; without them the release counts as one without noise.
            noised: whether the method adds noise under this task.
        """
        before = self.stores.get(store, StoreAccount())
        charged = Account.of(private, task.modality_names).ledgers
        bare = () if noised and charged else (task.name,)
        after = replace(
            before,
            account=Account({**before.account.ledgers, **charged}),
            span_s=max(before.span_s, span_of(task)),
            stride_s=task.window.stride_s,
            tasks=_newest(before.tasks, (task.name,)),
            without_noise=_newest(before.without_noise, bare),
        )
        stores = {name: one for name, one in self.stores.items() if name != store}
        old = list(stores)[: max(0, len(stores) + 1 - MAX_STORES)]
        return DeviceAccount({**stores, **{name: _summed(stores[name]) for name in old}, store: after})


def _newest(names: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    return (*(name for name in names if name not in new), *new)[-MAX_TASKS:]


def _summed(store: StoreAccount) -> StoreAccount:
    """The account without its single windows."""
    spent = {name: Ledger({}, ledger.most) for name, ledger in store.account.ledgers.items()}
    return replace(store, account=Account(spent))


def to_json(account: DeviceAccount) -> dict[str, Any]:
    """As JSON values."""
    return {name: _store_json(one) for name, one in account.stores.items()}


def from_json(content: Mapping[str, Any]) -> DeviceAccount:
    """The inverse of :func:`to_json`.

    Raises:
        ValueError, TypeError, KeyError: it is not an output of that.
    """
    return DeviceAccount({name: _store_of(one) for name, one in content.items()})


def _store_json(one: StoreAccount) -> dict[str, Any]:
    ledgers = {
        name: [base64.b64encode(part.tobytes()).decode() for part in ledger.arrays()]
        for name, ledger in one.account.ledgers.items()
    }
    lists = {"tasks": list(one.tasks), "without_noise": list(one.without_noise)}
    return {"span_s": one.span_s, "stride_s": one.stride_s, **lists, "ledgers": ledgers}


def _store_of(one: Mapping[str, Any]) -> StoreAccount:
    ledgers = {
        name: Ledger.of_arrays(
            np.frombuffer(base64.b64decode(ids), "<u8"), np.frombuffer(base64.b64decode(rho), "<f4")
        )
        for name, (ids, rho) in one["ledgers"].items()
    }
    names = tuple(one["tasks"]), tuple(one["without_noise"])
    return StoreAccount(Account(ledgers), float(one["span_s"]), float(one["stride_s"]), *names)
