"""A run of FedAvg: the product's rounds under a table. Imports torch."""

import math
import time
from collections.abc import Mapping

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import FEDAVG, PrivacyOutcome, PrivacySetting
from lichen_lab.simulation.training.crew.local_account import EPSILON, EPSILON_OF_MOMENT
from lichen_lab.simulation.training.report import local_accounts
from lichen_lab.simulation.training.runner import History, RoundRecord, simulate
from lichen_lab.simulation.training.workers import one_thread
from models.tensors import flatten
from protocol.tasks.folding import LocalPrivacy, Privacy
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Task


def task_of(fleet: PrivacyFleet, setting: PrivacySetting) -> Task:
    """What the fleet learns, and how it is protected."""
    task, small = fleet.task, Encoder(kind="cnn1d", width=setting.width, depth=2)
    encoders = dict.fromkeys(task.modality_names, small)
    rounds: dict[str, int | str] = {"count": setting.rounds, "patience": 0, "min_windows": 1}
    if not setting.noise_multiplier:
        wanted = max(1, round(setting.rate * len(fleet.devices)))
        rounds |= {"devices_per_round": wanted, "selection": "uniform"}
    privacy = Privacy(
        clip=setting.clip,
        noise_multiplier=setting.noise_multiplier,
        delta=setting.delta,
        sampling="poisson",
        rate=setting.rate,
        devices=len(fleet.devices),
    ) if setting.noise_multiplier else None  # fmt: skip
    return task.model_copy(
        update={
            "method": FEDAVG,
            "network": Network(encoders=encoders, feature_dim=setting.features, hidden_dim=setting.features),
            "rounds": task.rounds.model_copy(update=rounds),
            "uplink": Uplink(codec="int8"),
            "downlink": Downlink(),
            "privacy": privacy,
            "local_privacy": local_of(setting),
            "config": {"weigh_by": "equal", "lr_decay": 1.0, **setting.config},
        }
    )


def local_of(setting: PrivacySetting) -> LocalPrivacy | None:
    """The table ``[local_privacy]``; None: without noise of devices."""
    if not setting.local_noise:
        return None
    return LocalPrivacy(clip=setting.clip, noise_multiplier=setting.local_noise, delta=setting.delta)


def train(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run.

    Raises:
        Misconfigured: an option of the method is wrong.
    """
    began = time.process_time()
    return outcome_of(fleet, setting, history_of(fleet, setting, seed, tell), began)


def history_of(
    fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say, *, at_once: int = 1
) -> History:
    """The rounds of a run; so many devices train as one computation.

    Raises:
        Misconfigured: an option of the method is wrong.
    """

    def told(record: RoundRecord) -> None:
        tell(f"round {record.round} of {setting.rounds}")

    with one_thread():
        return simulate(
            task_of(fleet, setting),
            fleet.devices,
            fleet.test,
            seed,
            evaluate_every=setting.rounds,
            progress=told,
            devices_at_once=at_once,
        )


def outcome_of(
    fleet: PrivacyFleet, setting: PrivacySetting, history: History, began: float
) -> PrivacyOutcome:
    """The figures of a run that began at this CPU time."""
    judged, account = history.evaluation, history.account
    if judged is None:
        raise ValueError("a fleet without test windows")
    values = sum(tensor.size for tensor in flatten(history.state).values())
    local = local_accounts(history, setting.delta) if setting.local_noise else {}
    share = setting.noise_multiplier * math.sqrt(values) / (setting.rate * len(fleet.devices))
    return PrivacyOutcome(
        accuracy=100 * judged.metrics["accuracy"],
        macro_f1=100 * judged.metrics["macro_f1"],
        epsilon=None if account is None else account.epsilon,
        epsilon_of_seen=None if account is None else account.epsilon_of_seen,
        epsilon_of_window=_largest(local, EPSILON),
        epsilon_of_moment=_largest(local, EPSILON_OF_MOMENT),
        devices=len(fleet.devices),
        parameters=values,
        noise_share=share,
        taken=sum(len(record.accepted) for record in history.rounds) / len(history.rounds),
        refused=sum(len(record.refused) for record in history.rounds),
        seconds=time.process_time() - began,
    )


def _largest(accounts: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """Of a figure over the devices that have an account: no device has more."""
    return max((one[name] for one in accounts.values()), default=None)
