"""What does not go with a table ``[privacy]``, and what both tables promise, before a task runs."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from models.privacy.accountant import releases_within
from models.privacy.central_account import CentralAccount
from models.privacy.local.training_plan import TrainingPlan, promise_words
from models.privacy.noisy_fold import sigma_trouble
from models.privacy.shared_noise import SharedNoise, shared_noise
from models.spec import MethodSpec
from models.training.supervised_options import SupervisedConfig
from protocol.cohort import MAX_MEMBERS
from protocol.errors import Misconfigured
from protocol.tasks.folding import Privacy, Robust
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task


def privacy_problems(task: Task, spec: MethodSpec[Any]) -> Iterator[str]:
    """What of the task would make the account wrong, each in words with its key.

    Raises:
        Misconfigured: the accountant's package is not installed.
    """
    privacy = task.privacy
    if privacy is None:
        return
    with suppress(Misconfigured):  # the check of the options says what is wrong with them
        if why := spec.not_private(spec.configure(task), task):
            yield f"[privacy]: method {spec.name!r}: {why}"
    if task.robust.fold != "mean":
        yield (
            f"robust.fold = {task.robust.fold!r}: with [privacy] only a mean has a known bound of what one "
            "device "
            'changes: leave it at "mean"; clip and check of norms bound each device'
        )
    if task.robust.outlier_factor not in {0.0, Robust().outlier_factor}:  # files may name defaults
        yield (
            "robust.outlier_factor: with [privacy] no update may decide whether another counts; leave it "
            "out (the "
            "screen is off, and updates beyond the clip are refused)"
        )
    shared = shared_noise(task)
    if shared is not None:
        yield from _shared_problems(task, privacy, shared)
    elif trouble := sigma_trouble(privacy):
        yield f"privacy: {trouble}"
    if privacy.rate is not None and shared is None:
        yield from _sampling_problems(task, privacy, privacy.rate)
    if privacy.max_epsilon is not None and not releases_within(privacy, task.rounds.count, shared):
        once = CentralAccount.after(privacy, 1, shared=shared)
        yield (
            f"privacy.max_epsilon = {privacy.max_epsilon:g}: no version fits into it ({once.words}); more "
            "noise_multiplier makes epsilon smaller"
        )


def _shared_problems(task: Task, privacy: Privacy, shared: SharedNoise) -> Iterator[str]:
    """What does not go with noise that devices add."""
    if privacy.sampling != "none":
        yield (
            f'privacy.sampling = "{privacy.sampling}": with [secure_aggregation] the coordinator decides and '
            "knows who is asked, so chance hides nobody from it; and a sum over few devices is not made, so "
            'one device would decide about others; write "none", and leave rate and devices out'
        )
    if privacy.adaptive_clip is not None:
        yield (
            "[privacy.adaptive_clip]: with [secure_aggregation] nobody sees which updates were within the "
            "clip; leave the table out"
        )
    if (options := task.secure_aggregation) is not None and options.weights != "equal":
        yield (
            f"secure_aggregation.weights = {options.weights!r}: with [privacy] every device weighs 1; write "
            "'equal'"
        )
    if shared.trouble:
        yield f"privacy: {shared.trouble}"
    if trouble := shared.room_trouble(max(shared.devices, task.rounds.devices_per_round or 0)):
        yield f"privacy: {trouble}"


def _sampling_problems(task: Task, privacy: Privacy, rate: float) -> Iterator[str]:
    rounds = task.rounds
    for key, wanted in (("devices_per_round", None), ("quorum", 1.0), ("min_devices", 1)):
        if getattr(rounds, key) != wanted:
            yield (
                f'rounds.{key}: with privacy.sampling = "poisson" each device takes part by chance alone, '
                "and a "
                "limit on their number would make one depend on another; leave it out"
            )
    if rounds.selection != Rounds().selection:
        yield (
            f'rounds.selection = {rounds.selection!r}: with privacy.sampling = "poisson" each device takes '
            "part with "
            "probability privacy.rate; leave it out"
        )
    if (expected := rate * (privacy.devices or 0)) > MAX_MEMBERS / 2:
        yield (
            f"privacy.rate times privacy.devices is {expected:.0f}; an offer names at most {MAX_MEMBERS} "
            "devices, and "
            f"a sample must be below {MAX_MEMBERS // 2} on average"
        )


def require_privacy(task: Task, spec: MethodSpec[Any]) -> None:
    """Check a task's table ``[privacy]``.

    Raises:
        Misconfigured: something does not go with it; the message names all of it.
    """
    if found := list(privacy_problems(task, spec)):
        raise Misconfigured("; ".join(found))


def promise(task: Task, spec: MethodSpec[Any] | None = None) -> str:
    """What the table promises for the planned rounds, in words; empty: the task has none.

    ``spec``: its method, if it is known.

    Raises:
        Misconfigured: the accountant's package is not installed.
    """
    privacy = task.privacy
    if privacy is None:
        return ""
    planned = task.rounds.count
    shared = shared_noise(task)
    rounds = releases_within(privacy, planned, shared)
    words = CentralAccount.after(privacy, rounds, shared=shared).words
    if rounds < planned:
        words += f"; privacy.max_epsilon ends the rounds there, before {planned}"
    if privacy.rate is not None and privacy.devices is not None:
        expected = privacy.rate * privacy.devices
        words += f"; {expected:g} of {privacy.devices} devices take part in a round on average"
    if shared is not None and spec is not None and spec.routed:
        words += "; not in it: what each device tells of the bundle that it is to get"
    return words


def local_promise(task: Task, spec: MethodSpec[Any]) -> str:
    """What ``[local_privacy]`` promises for the planned rounds, in words; empty: the task has none.

    Of a device with as few windows as take part: each of its windows is taken most often.

    Raises:
        Misconfigured: wrong options of the method.
    """
    if task.local_privacy is None:
        return ""
    config, windows = spec.configure(task), task.rounds.min_windows
    if not isinstance(config, SupervisedConfig):
        return "the account of each device, by the method"
    plan = TrainingPlan.of(config.batch, config.epochs, windows)
    return promise_words(task, task.local_privacy, plan, windows)
