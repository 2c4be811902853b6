"""The account of differential privacy of a whole device, over all tasks and window stores. Pure.

All of them are cut from the same streams, so their costs add up (:mod:`models.privacy.account`). Prototypes
with noise are charged to single windows, training under ``[local_privacy]`` to all windows of the store: also
to those that came later, which makes the account larger than need be, and never too small.
"""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from models.contract import Tensors
from models.privacy.account import LIMIT, Account, Ledger, overlap, span_of
from models.privacy.local.renyi import Spending, sampled_gaussian
from models.privacy.local.training_plan import TrainingPlan
from protocol.tasks.task import Task

MAX_STORES: Final = 16
"""Window stores whose single windows are stored; of older ones, only the largest rho."""
MAX_TASKS: Final = 32
MAX_TRAININGS: Final = 64
"""Different noises and rates of a store; of more, the oldest two are counted as one that costs more."""
Trainings = Mapping[tuple[float, float], int]
"""Steps of training by noise and rate; the last used at the end."""


@dataclass(frozen=True)
class StoreAccount:
    """The account of one window store.

    Attributes:
        account: the cost of releases with noise.
        span_s: seconds of stream of one window, with its context.
        stride_s: between windows.
        tasks: tasks that released anything, the newest last.
        without_noise: those of them that released something without noise.
        trainings: steps of training with noise, of all its windows.
    """

    account: Account = field(default_factory=lambda: Account({}))
    span_s: float = 0.0
    stride_s: float = 0.0
    tasks: tuple[str, ...] = ()
    without_noise: tuple[str, ...] = ()
    trainings: Trainings = field(default_factory=dict)

    def of_windows(self, count: int) -> Spending:
        """What so many of its windows together have spent."""
        rho = math.inf if self.without_noise else self.account.most
        spent = Spending(rho * count**2 if rho else 0.0)
        for (noise, rate), steps in self.trainings.items():
            spent += Spending(curve=sampled_gaussian(noise, rate, steps, count))
        return spent

    def over(self, stretch_s: float) -> Spending:
        """What all its windows that overlap a stretch of this length have spent; 0: a moment."""
        return self.of_windows(overlap(self.span_s, self.stride_s, stretch_s))


@dataclass(frozen=True)
class DeviceAccount:
    """All window stores of a device, by the digest that names them; the last used at the end."""

    stores: Mapping[str, StoreAccount] = field(default_factory=dict)

    def of_stretch(self, stretch_s: float = 0.0) -> Spending:
        """What any stretch of the streams of this length has spent, at most; 0: a moment."""
        return _sum(one.over(stretch_s) for one in self.stores.values())

    def epsilon_of_window(self, delta: float) -> float:
        """A bound for every window: charges of its own store, and of other stores' windows that touch it."""
        every = self.stores.items()
        return max(
            (
                _sum(
                    other.of_windows(1) if name == own else other.over(one.span_s) for name, other in every
                ).epsilon(delta)
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

    def given(
        self, store: str, task: Task, epsilon: float | None, delta: float, stretch_s: float = 0.0
    ) -> Tensors:
        """For a method's private tensors: its store's account, and the limit of a window's rho in all.

        Args:
            store: the window store's digest.
            task: says how windows are cut.
            epsilon: that no stretch may exceed; None: the device sets no limit.
            delta: of that epsilon.
            stretch_s: length of the stretch; 0: a moment.
        """
        before = self.stores.get(store, StoreAccount())
        tensors = before.account.tensors()
        if epsilon is not None:
            together = overlap(max(before.span_s, span_of(task)), task.window.stride_s, stretch_s)
            trained = replace(before, account=Account({})).of_windows(together)
            others = (one.over(stretch_s) for name, one in self.stores.items() if name != store)
            left = _sum([trained, *others]).rho_left(epsilon, delta) / together**2
            tensors[LIMIT] = np.array([left], np.float32)
        return tensors

    def with_older(self, store: str, task: Task, private: Tensors) -> "DeviceAccount":
        """The account with a task's charges from before there was one account for all tasks, added up."""
        older = Account.of(private, task.modality_names).ledgers
        if not older:
            return self
        before = self.stores.get(store, StoreAccount())
        ledgers = before.account.ledgers
        summed = {name: ledgers[name].plus(one) if name in ledgers else one for name, one in older.items()}
        account = Account({**ledgers, **summed})
        return DeviceAccount({**self.stores, store: replace(before, account=account)})

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
        local, plan = task.local_privacy, TrainingPlan.within(private)
        trainings = before.trainings
        if local is not None and plan is not None:
            trainings = _with_steps(trainings, (local.noise_multiplier, plan.rate), plan.steps)
        bare = () if noised and (plan if local is not None else charged) else (task.name,)
        after = replace(
            before,
            account=Account({**before.account.ledgers, **charged}),
            span_s=max(before.span_s, span_of(task)),
            stride_s=task.window.stride_s,
            tasks=_newest(before.tasks, (task.name,)),
            without_noise=_newest(before.without_noise, bare),
            trainings=trainings,
        )
        stores = {name: one for name, one in self.stores.items() if name != store}
        old = list(stores)[: max(0, len(stores) + 1 - MAX_STORES)]
        return DeviceAccount({**stores, **{name: _summed(stores[name]) for name in old}, store: after})


def _sum(every: Iterable[Spending]) -> Spending:
    return sum(every, Spending())


def _with_steps(trainings: Trainings, how: tuple[float, float], steps: int) -> Trainings:
    made = {one: count for one, count in trainings.items() if one != how}
    made[how] = trainings.get(how, 0) + steps
    while len(made) > MAX_TRAININGS:
        (noise1, rate1), (noise2, rate2) = list(made)[:2]
        together = made.pop((noise1, rate1)) + made.pop((noise2, rate2))
        dearer = min(noise1, noise2), max(rate1, rate2)
        made = {dearer: together + made.pop(dearer, 0), **made}
    return made


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
    trainings = [[noise, rate, steps] for (noise, rate), steps in one.trainings.items()]
    rest = {"ledgers": ledgers, "trainings": trainings} if trainings else {"ledgers": ledgers}
    return {"span_s": one.span_s, "stride_s": one.stride_s, **lists, **rest}


def _store_of(one: Mapping[str, Any]) -> StoreAccount:
    ledgers = {
        name: Ledger.of_arrays(
            np.frombuffer(base64.b64decode(ids), "<u8"), np.frombuffer(base64.b64decode(rho), "<f4")
        )
        for name, (ids, rho) in one["ledgers"].items()
    }
    names = tuple(one["tasks"]), tuple(one["without_noise"])
    trainings = {}
    for noise, rate, steps in one.get("trainings", []):  # an account from before training with noise has none
        if not (noise > 0 and 0 < rate <= 1 and steps > 0):
            raise ValueError("a training that is none")
        trainings[float(noise), float(rate)] = int(steps)
    return StoreAccount(Account(ledgers), float(one["span_s"]), float(one["stride_s"]), *names, trainings)
