"""A fleet that sees and hears digits, some devices without camera or microphone, against central training.

AV-MNIST: written digits (MNIST) beside spoken ones (FSDD). Ten devices with 100 pairs each, of which three
have no camera and three no microphone; evaluated on 1,000 pairs of images and recordings that none has, with
both and with either one alone. A second fleet has a feature of zeros in the place of a missing one. The
options were checked on pairs of the training part, with a seed that is not measured.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, row
from lichen_lab.benchmarks.suite.kinds import images, sound
from lichen_lab.benchmarks.suite.kinds.against_central import CENTRAL, FLEET, MARGIN
from lichen_lab.simulation.data.access.split import Part, complete
from lichen_lab.simulation.data.sets import av_mnist, fsdd
from lichen_lab.simulation.data.streams import masked, rng_of
from lichen_lab.simulation.training.runner import simulate
from models import registry
from models.contract import WindowSet
from models.data.window_set import concat, select
from protocol.tasks.network import Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

_EACH: Final = 100
_TESTS: Final = 1000
_ROUNDS: Final = 10
_PURPOSE: Final = 32
_BOTH: Final = (True, True)
_IMAGE: Final = (True, False)
_SOUND: Final = (False, True)
ZEROS: Final = "fleet, zero feature"
ABOVE_ZEROS: Final = "prototypes above a feature of zeros, points"
SETTING: Final = "10 devices, 100 pairs each; 3 have no camera, 3 no microphone; 10 rounds of 3 epochs"
ACCURACY: Final = "accuracy on unseen pairs, %"
KEPT: Final = ((_IMAGE,) * 3, (_SOUND,) * 3, (_BOTH,) * 4)
"""Which modalities the devices have."""
CONDITIONS: Final = {"both": _BOTH, "image alone": _IMAGE, "sound alone": _SOUND}


@dataclass(frozen=True)
class Pairs:
    """One repetition: the devices' windows, and those for evaluation by condition."""

    task: Task
    devices: Mapping[str, WindowSet]
    tests: Mapping[str, WindowSet]


def task_of(seed: int, rounds: int = _ROUNDS) -> Task:
    """The camera and the microphone of the other two benches; 60 steps of a device a round.

    Nothing is augmented: the speakers of the evaluation are those of the devices.
    """
    camera, microphone = images.task_of("MNIST", seed), sound.task_of(seed)
    plain = [one.model_copy(update={"augment": None}) for one in microphone.modalities]
    return Task(
        name="av-mnist",
        labels=av_mnist.LABELS,
        modalities=(*camera.modalities, *plain),
        window=sound.WINDOW,
        network=Network(
            encoders={**camera.network.encoders, **microphone.network.encoders}, feature_dim=64, hidden_dim=64
        ),
        rounds=Rounds(count=rounds),
        config={"epochs": 3, "batch": 5, "lr": 0.08, "lr_decay": 0.88, "pce_on_incomplete": True},
        seed=seed,
    )


def pairs_of(part: Part, count: int, seed: int) -> WindowSet:
    """So many images of a part, drawn at random, each with a recording of its digit of the same part."""
    rng = rng_of(_PURPOSE, seed)
    image_BHW, digit_B = av_mnist.images(part)
    clips = fsdd.clips()
    test_S = clips.index < fsdd.TEST_RECORDINGS
    at_B = rng.choice(len(digit_B), count, replace=False)
    candidates = np.flatnonzero(test_S if part == "test" else ~test_S)
    partner_B = av_mnist.partners(digit_B[at_B], clips.digit, candidates, rng)
    said = fsdd.Clips(
        [clips.audio[i] for i in partner_B],
        clips.digit[partner_B],
        clips.speaker[partner_B],
        clips.index[partner_B],
    )
    written = images.windows_of(image_BHW[at_B], digit_B[at_B])
    return complete({**written.x, **sound.windows_of(said).x}, digit_B[at_B])


def fleet(seed: int, rounds: int = _ROUNDS, each: int = _EACH, tests: int = _TESTS) -> Pairs:
    """One repetition."""
    kept = [*chain(*KEPT)]
    whole, test = pairs_of("train", len(kept) * each, seed), pairs_of("test", tests, seed)
    devices = {
        f"d{i}": masked(select(whole, np.arange(i * each, (i + 1) * each)), np.array(keep))
        for i, keep in enumerate(kept)
    }
    judged = {name: masked(test, np.array(keep)) for name, keep in CONDITIONS.items()}
    return Pairs(task_of(seed, rounds), devices, judged)


def ways(case: Pairs) -> dict[str, tuple[Task, Mapping[str, WindowSet]]]:
    """What is trained: the task with its options, and on whose windows."""
    zeros = case.task.config | {"impute": "zero_feature", "pce_on_incomplete": False}
    return {
        FLEET: (case.task, case.devices),
        ZEROS: (case.task.model_copy(update={"config": zeros}), case.devices),
        CENTRAL: (case.task, {CENTRAL: concat([*case.devices.values()])}),
    }


def scores(case: Pairs, say: Say) -> Iterator[tuple[str, str, float]]:
    """Way, condition and accuracy in %."""
    client = registry.method(case.task.method).client()
    for way, (task, devices) in ways(case).items():
        state = simulate(task, devices, None, task.seed).state
        for condition, windows in case.tests.items():
            accuracy = 100 * client.evaluate(task, windows, state).metrics["accuracy"]
            say(f"seed {task.seed}: {way}, {condition}: {accuracy:.1f} %")
            yield way, condition, accuracy


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds; quick: two rounds of one, on few pairs."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    began = time.process_time()
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(1 if quick else 3):
        case = fleet(seed, rounds=2, each=20, tests=100) if quick else fleet(seed)
        for way, condition, accuracy in scores(case, say):
            found.setdefault((way, condition), []).append(accuracy)
    return rows_of(found, time.process_time() - began)


def rows_of(found: Mapping[tuple[str, str], list[float]], seconds: float) -> list[ResultRow]:
    """Mean and spread of each way, and the fleet's paired margins, by condition (in the row's data set)."""
    rows = []
    for (way, condition), values in found.items():
        dataset = f"AV-MNIST, {condition}"
        rows.append(row(dataset, way, SETTING, ACCURACY, values, seconds=seconds))
        if metric := {CENTRAL: MARGIN, ZEROS: ABOVE_ZEROS}.get(way):
            pairs = zip(found[FLEET, condition], values, strict=True)
            margins = [ours - theirs for ours, theirs in pairs]
            rows.append(row(dataset, FLEET, SETTING, metric, margins, seconds=seconds))
    return rows


BENCH: Final = Bench(name="av_mnist", run=run)
