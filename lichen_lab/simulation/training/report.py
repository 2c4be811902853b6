"""Runs the simulation that ``lichen simulate`` asks for, and reports it as JSON values. Imports torch."""

import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from rich.console import Console

from coordinator.aggregation.device_weights import kept
from lichen_lab.simulation.training.crew.local_account import EPSILON, EPSILON_OF_MOMENT
from lichen_lab.simulation.training.evaluation.subsets import judged_in_parts
from lichen_lab.simulation.training.inputs import TrainingFleet
from lichen_lab.simulation.training.personal import each_personal
from lichen_lab.simulation.training.runner import History, RoundRecord, alone, not_judged, simulate
from models.data.window_set import described
from models.training.evaluation import Part, of_classes

_SAY_EVERY_S: Final = 5.0


@dataclass(frozen=True)
class How:
    """How a simulation is run and evaluated.

    Attributes:
        every: rounds between two evaluations.
        local: also train each device by itself.
        personal: also evaluate each device's personal model.
        threads: of torch, with one worker.
        workers: processes; None: 1, or as many as the cluster has CPUs.
        devices_at_once: that a process trains as one computation.
        ray: address of a Ray cluster; empty: none.
        by: parts of the test windows to evaluate the last version on.
    """

    every: int = 1
    local: bool = False
    personal: bool = False
    threads: int = 1
    workers: int | None = None
    devices_at_once: int = 1
    ray: str = ""
    by: tuple[Part, ...] = ()


def run(fleet: TrainingFleet, how: How) -> dict[str, Any]:
    """Simulate; the history as JSON values."""
    torch.set_num_threads(how.threads)
    for file, findings in fleet.findings.items():
        for finding in findings:
            sys.stderr.write(f"{finding.severity}: {file}: {finding.words}\n")
    why_not = not_judged(fleet.task, fleet.test) if how.personal else ""
    history = simulate(
        fleet.task,
        fleet.devices,
        None if why_not else fleet.test,
        fleet.seed,
        evaluate_every=how.every,
        roles=fleet.roles,
        profiles=fleet.profiles,
        labelled=fleet.labelled,
        workers=how.workers,
        devices_at_once=how.devices_at_once,
        ray=how.ray,
        keep_private=how.personal,
        ends_early=True,
        validation=fleet.validation,
        progress=_Progress(fleet.task.rounds.count).told,
    )
    report: dict[str, Any] = {
        "task": fleet.task.name,
        "method": fleet.task.method,
        "config": fleet.task.config,
        "seed": fleet.seed,
        **fleet.about,
        "devices": sorted(fleet.devices),
        "findings": [
            {"file": str(file), **finding.as_json()} for file, of in fleet.findings.items() for finding in of
        ],
        "roles": {name: fleet.roles.get(name, "train") for name in sorted(fleet.devices)},
        "judged_on": None if fleet.test is None else described(fleet.test, fleet.task),
        "rounds": [_round(record) for record in history.rounds],
        "confusion": None if history.evaluation is None else history.evaluation.confusion_KK,
        "by_class": {}
        if history.evaluation is None
        else of_classes(fleet.task.labels, history.evaluation.confusion_KK),
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
        "seconds": history.seconds,
        **({"ended": history.ended} if history.ended else {}),
        **({"privacy": history.account.as_json()} if history.account is not None else {}),
        **(
            {"local_privacy": local_accounts(history, local.delta)}
            if (local := fleet.task.local_privacy)
            else {}
        ),
        **({"not_judged": why_not} if why_not else {}),
    }
    if history.evaluation is not None and fleet.test is not None:
        report["by"] = judged_in_parts(fleet.task, history.state, fleet.test, how.by)
    if how.local and fleet.test is not None:
        trainers = {name: held for name, held in fleet.devices.items() if name not in fleet.roles}
        may = {name: profile for name, profile in fleet.profiles.items() if name in trainers}
        reached = alone(
            fleet.task,
            trainers,
            fleet.test,
            fleet.seed,
            rounds=len(history.rounds),
            profiles=may,
            labelled=fleet.labelled,
            progress=_Each(len(trainers)).begins,
        )
        report["alone"] = {name: evaluation.metrics for name, evaluation in reached.items()}
    if how.personal:
        report["personal"] = _personal(fleet, history)
    return report


def local_accounts(history: History, delta: float) -> dict[str, Any]:
    """The account of each device that sent anything, after its last accepted update."""
    found: dict[str, Any] = {}
    for record in history.rounds:
        for device, metrics in record.accepted.items():
            updates = found.get(device, {}).get("updates", 0) + 1
            bounds = {key: metrics[key] for key in (EPSILON, EPSILON_OF_MOMENT)}
            found[device] = {"updates": updates, **bounds, "delta": delta}
    return dict(sorted(found.items()))


def _round(record: RoundRecord) -> dict[str, Any]:
    """A round; of its weighing only what a coordinator keeps, whose size is not quadratic in devices."""
    row = asdict(replace(record, weighing=None))
    if record.weighing is not None:
        row["weighing"] = kept(record.weighing, {}).as_json()
        del row["weighing"]["metrics"]  # they are ``trained``
    return row


def _personal(fleet: TrainingFleet, history: History) -> dict[str, Any]:
    assert fleet.test is not None  # noqa: S101 - asked for in simulate()
    judged = each_personal(
        fleet.task, history, fleet.devices, fleet.test, fleet.seed, profiles=fleet.profiles
    )
    return {
        name: {"global": None if one.common is None else one.common.metrics, "personal": one.own.metrics}
        for name, one in judged.items()
    }


class _Each:
    """Reports on standard error which device is trained alone now."""

    def __init__(self, devices: int) -> None:
        self._devices, self._done, self._began = devices, 0, time.perf_counter()
        self._console = Console(stderr=True)

    def begins(self, name: str) -> None:
        """Report that this device is next."""
        took = time.perf_counter() - self._began
        left = f"; {took / self._done * (self._devices - self._done):.0f} s left" if self._done else ""
        self._done += 1
        words = f"alone: device {self._done} of {self._devices}, {name}{left}"
        self._console.print(words, style="dim", highlight=False, markup=False)


class _Progress:
    """Reports the progress on standard error at intervals."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._began = self._said = time.perf_counter()
        self._console = Console(stderr=True)

    def told(self, record: RoundRecord) -> None:
        """Report a closed round."""
        now = time.perf_counter()
        if now - self._said < _SAY_EVERY_S:
            return
        self._said = now
        left = (now - self._began) / record.round * (self._rounds - record.round)
        accuracy = record.metrics.get("accuracy")
        reached = "" if accuracy is None else f", accuracy {accuracy:.3f}"
        words = f"simulate: round {record.round} of {self._rounds}{reached}; {left:.0f} s left"
        self._console.print(words, style="dim", highlight=False)
