"""Simulated fleets whose devices see images, hear sound, or read texts."""

import pytest

from lichen_lab.simulation.training.device import PROTOTYPE
from lichen_lab.simulation.training.runner import simulate
from tests.support.kinds import task_of_kinds, windows_of


@pytest.mark.long
def test_simulate_devices_that_see_and_read_learn_and_workers_change_no_byte() -> None:
    task = task_of_kinds(("image", "text"), config={"epochs": 2, "batch": 16, "lr": 0.1})
    fleet = {f"d{i}": windows_of(task, i, count=96, missing=0.2 * i) for i in range(2)}
    test = windows_of(task, 50, count=60)
    made = simulate(task, fleet, test, 3, rounds=6, evaluate_every=6)
    assert made.evaluation is not None
    assert made.evaluation.metrics["accuracy"] > 0.8
    there = simulate(task, fleet, test, 3, rounds=6, evaluate_every=6, workers=2)
    assert there.rounds == made.rounds


@pytest.mark.long
def test_simulate_devices_without_torch_send_prototypes_of_images_and_sound() -> None:
    task = task_of_kinds(("image", "sound"), config={"epochs": 2, "batch": 16, "lr": 0.1})
    fleet = {f"d{i}": windows_of(task, i, count=96) for i in range(3)}
    made = simulate(task, fleet, windows_of(task, 50, count=60), 3, rounds=4, roles={"d2": PROTOTYPE})
    assert made.evaluation is not None
    assert made.evaluation.metrics["accuracy"] > 0.8
    assert made.rounds[0].bytes_up["prototypes/camera"] > 0
