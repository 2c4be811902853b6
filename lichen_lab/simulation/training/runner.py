"""Many virtual devices: the method's real client and server, real frames, no broker.

Every update is quantized with error carry, encoded as a frame, decoded and checked exactly as between an
agent and a coordinator: the accuracy includes the cost of the codec, and the bytes are those on the wire. The
same task, windows and seed give the same history, in one process or in several.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.privacy.account_store import why_last
from coordinator.privacy.promise import require_privacy
from lichen.commands.data_check import require_windows
from lichen_lab.simulation.training.crew.groups import require_groups
from lichen_lab.simulation.training.crew.parts import Devices, choice_of, crew_of, fleet_of, site_of
from lichen_lab.simulation.training.device import Role, Site, VirtualDevice
from lichen_lab.simulation.training.downlink.versions import Versions
from lichen_lab.simulation.training.early_end import EarlyEnd
from lichen_lab.simulation.training.engine import Engine, RoundRecord, Tamper, Watch
from lichen_lab.simulation.training.evaluation.subsets import judgeable, labelled_for, without_others
from lichen_lab.simulation.training.guided import Guide
from lichen_lab.simulation.training.workers import Crew, LocalWorker
from models import packages, registry
from models.contract import Blobs, Evaluation, Profile, Tensors, WindowSet
from models.privacy.accountant import releases_within
from models.privacy.central_account import CentralAccount
from models.privacy.shared_noise import shared_noise
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

__all__ = ["History", "Role", "RoundRecord", "VirtualDevice", "alone", "each_alone", "not_judged", "simulate"]

Progress = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class History:
    """The result of a simulation.

    Attributes:
        rounds: in order.
        state: the final global state as devices hold it.
        evaluation: of the final state on the test windows; None without any.
        seconds: total wall time.
        private: each device's private tensors; empty if they were not asked for.
        extra: by device, the method's own message of its last accepted update.
        ended: why the rounds ended before the task's number; empty: they did not.
        lineage: digests of the last version's manifest and of the one before.
        account: of a task with ``[privacy]``.
    """

    rounds: tuple[RoundRecord, ...]
    state: Blobs
    evaluation: Evaluation | None
    seconds: float
    private: Mapping[str, Tensors] = field(default_factory=dict)
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ended: str = ""
    lineage: tuple[str, str | None] = ("", None)
    account: CentralAccount | None = None

    def curve(self, metric: str = "accuracy") -> list[float]:
        """One metric over the evaluated rounds."""
        return [record.metrics[metric] for record in self.rounds if metric in record.metrics]

    @property
    def bytes_up(self) -> int:
        """Payload bytes of all updates of all rounds."""
        return sum(sum(record.bytes_up.values()) for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Payload bytes of the manifests and blobs that all devices fetched in all rounds."""
        return sum(sum(record.bytes_down.values()) for record in self.rounds)


@dataclass(frozen=True)
class _Asked:
    """How a simulation is to be run and evaluated; see :func:`simulate`."""

    test: WindowSet | None
    rounds: int
    every: int = 1
    progress: Progress | None = None
    keep_private: bool = False
    ends: EarlyEnd | None = None


def simulate(
    task: Task,
    devices: Devices,
    test: WindowSet | None,
    seed: int,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    progress: Progress | None = None,
    tamper: Mapping[str, Tamper] | None = None,
    watch: Watch | None = None,
    roles: Mapping[str, Role] | None = None,
    profiles: Mapping[str, Profile] | None = None,
    labelled: WindowSet | None = None,
    workers: int | None = None,
    devices_at_once: int = 1,
    ray: str = "",
    keep_private: bool = False,
    ends_early: bool = False,
    validation: WindowSet | None = None,
) -> History:
    """Run a whole federated training.

    Args:
        task: method, network, uplink codec and the method's options; ``rounds.devices_per_round`` of the
            devices take part in a round, chosen by ``rounds.selection``.
        devices: name -> its windows, or a stream of the windows that it holds at each round.
        test: labelled windows to evaluate each version on.
        seed: decides the initial model and every device's order of samples.
        rounds: instead of ``task.rounds.count``.
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        progress: called with each closed round.
        tamper: hostile devices, and how each changes its frames.
        watch: called with the updates of every round.
        roles: of the devices that do not train (``prototype``).
        profiles: what devices may read and predict, if the method lets them differ; all others: whatever
            their windows have.
        labelled: the coordinator's labelled windows, for a guided method.
        workers: processes that the devices are dealt to, each with one torch thread; 1 runs all in this
            process, with its number of threads. With one thread here, the number changes no byte. None: 1,
            or as many as the cluster has CPUs.
        devices_at_once: devices that a process trains as one computation, at most. Values then differ in
            their last bits from those of 1; the number of processes still changes no byte.
        ray: address of a Ray cluster for these processes; empty: this machine.
        keep_private: also return the devices' private tensors.
        ends_early: end the rounds where a coordinator would (``rounds.patience``).
        validation: the labelled windows of a coordinator's ``[evaluation]``, by which it ends them.

    Raises:
        Misconfigured: a table ``[privacy]`` that does not fit the task, a knowledge-graph task, an unknown
            method, option or policy, no device, a role that the method lacks, devices that cannot train at
            once, or labelled windows that are missing, do not fit or are not used.
        Transient: a worker process ended by itself; the message names its devices.
    """
    packages.require(task, packages.permitted())
    registry.admit(task, packages.permitted())
    spec = registry.method(task.method)
    spec.configure(task)
    require_privacy(task, spec)
    task = _of_rounds(task, rounds)
    fleet = fleet_of(devices, roles or {}, profiles or {})
    if workers is not None and workers < 1:
        raise Misconfigured(f"a simulation needs at least one worker process, not {workers}")
    site, guide = site_of(task, seed, fleet, devices_at_once), Guide.of(task, labelled, seed)
    require_groups(site, ray)
    down = Versions(task)
    choice = choice_of(task, seed, fleet)
    key = hashlib.sha256(f"noise of simulation {seed}".encode()).digest()
    engine = Engine(
        task, spec.server(), tamper or {}, watch, down=down, choice=choice, guide=guide, noise_key=key
    )
    ends = EarlyEnd(task, validation) if ends_early and task.rounds.patience else None
    asked = _Asked(test, task.rounds.count, evaluate_every, progress, keep_private, ends)
    crew = crew_of(site, fleet, workers, ray)
    try:
        made = _run(engine, crew, site, asked)
        ended = made.ended or why_last(task, len(made.rounds))
        return replace(made, lineage=down.lineage, ended=ended)
    finally:
        crew.close()


def _of_rounds(task: Task, rounds: int | None) -> Task:
    """The task with that number of rounds, or as many as ``privacy.max_epsilon`` leaves."""
    require_windows(task, "a simulation")
    wanted = rounds or task.rounds.count
    if task.privacy is not None:
        wanted = releases_within(task.privacy, wanted, shared_noise(task))
    return task.model_copy(update={"rounds": task.rounds.model_copy(update={"count": wanted})})


def not_judged(task: Task, test: WindowSet | None) -> str:
    """Why no version of a task can be evaluated by itself; empty if it can, or without test windows.

    The reason: devices have private parts of the model that the fleet lacks.
    """
    if test is None:
        return ""
    client = registry.method(task.method).client()
    try:
        client.evaluate(task, test, client.initial(task, task.seed))
    except Misconfigured as error:
        return str(error)
    return ""


def _run(engine: Engine, crew: Crew, site: Site, asked: _Asked) -> History:
    started, task = time.perf_counter(), engine.task
    client = registry.method(task.method).client()
    state = client.initial(task, site.seed)
    held = engine.publish(state)
    records: list[RoundRecord] = []
    judged: Evaluation | None = None
    ended = asked.ends.reason(None, state, held) if asked.ends else ""

    def settle(*, last: bool = False) -> None:
        """Evaluate the last round's version; worker processes are at the next round already."""
        nonlocal judged
        record = records[-1]
        if asked.test is not None and (record.round % asked.every == 0 or last):
            judged = client.evaluate(task, asked.test, held)
            record.metrics.update(judged.metrics)
        if asked.progress is not None:
            asked.progress(record)

    for round_ in range(1, asked.rounds + 1):
        crew.start(engine.offered(held), round_, engine.chosen(round_))
        if records:
            settle()
        before = state
        record, state = engine.close(crew.finish(), state, round_)
        held = engine.publish(state)
        records.append(record)
        if asked.ends and record.accepted and (ended := asked.ends.reason(before, state, held)):
            break
    settle(last=True)
    account = None
    if task.privacy is not None:
        account = CentralAccount.after(task.privacy, len(records), engine.clip, shared_noise(task))
    private = crew.private() if asked.keep_private else {}
    seconds = time.perf_counter() - started
    return History(tuple(records), held, judged, seconds, private, dict(engine.extra), ended, account=account)


def alone(
    task: Task,
    devices: Devices,
    test: WindowSet,
    seed: int,
    *,
    rounds: int | None = None,
    profiles: Mapping[str, Profile] | None = None,
    labelled: WindowSet | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Evaluation]:
    """What each device reaches alone, evaluated on the same windows; see :func:`each_alone`.

    It is evaluated only on targets that it had labels for; a device without any of them is left out.
    """
    asked: dict[str, Any] = {"rounds": rounds, "profiles": profiles, "labelled": labelled}
    histories = each_alone(task, devices, test, seed, progress=progress, **asked)
    return {name: history.evaluation for name, history in histories.items() if history.evaluation is not None}


def each_alone(
    task: Task,
    devices: Devices,
    test: WindowSet | None,
    seed: int,
    *,
    rounds: int | None = None,
    profiles: Mapping[str, Profile] | None = None,
    labelled: WindowSet | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, History]:
    """The local-only baseline: the same client and as many rounds, no aggregation.

    A fleet of one is that baseline, with the order of samples that the device has in the whole fleet. Its
    "uplink" is float32, because it needs no codec and must not lose by one. A guided method trains on the
    same labelled windows for each. ``progress`` is called with each device's name before its training.
    """
    exact = {
        "uplink": task.uplink.model_copy(update={"codec": "float32"}),
        "privacy": None,
        "local_privacy": None,
    }
    local = _of_rounds(task.model_copy(update=exact), rounds)
    spec = registry.method(task.method)
    spec.configure(local)
    site, guide, histories = Site(local, seed), Guide.of(local, labelled, seed), {}
    for device in fleet_of(devices, {}, profiles or {}):
        if progress is not None:
            progress(device.name)
        targets = labelled_for(local, device.held(local.rounds.count))
        own = None if test is None else judgeable(local, test, targets)
        asked = _Asked(own, local.rounds.count, local.rounds.count)
        engine = Engine(local, spec.server(), {}, None, guide=guide)
        history = _run(engine, LocalWorker(site, [device]), site, asked)
        if history.evaluation is not None:
            history = replace(history, evaluation=without_others(local, history.evaluation, targets))
        histories[device.name] = history
    return histories
