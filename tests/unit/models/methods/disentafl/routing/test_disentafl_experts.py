"""The experts (m, o, d) that the bandit balances: of a device's route, and of what its update moved."""

import pytest

from models.contract import Profile
from models.methods.disentafl import experts
from models.methods.disentafl.routing.blob_names import route
from tests.support.methods.disentafl_cases import GYRO, task_of

OWN = {"gyro.pose", "gyro.speed"}


@pytest.mark.parametrize(
    ("config", "of_route", "of_update"),
    [
        ({"domains": 3}, {f"{pair}.{d}" for pair in OWN for d in range(3)}, {f"{pair}.1" for pair in OWN}),
        ({"families": ["mote", "mome"]}, {f"{pair}." for pair in OWN}, {f"{pair}." for pair in OWN}),
        ({"families": []}, set(), set()),
    ],
    ids=["all domains, and the one that trained", "without domain experts", "without experts"],
)
def test_experts_are_what_a_device_reads_predicts_and_has_domains_of(
    config: dict[str, object], of_route: set[str], of_update: set[str]
) -> None:
    task = task_of(**config)
    assert experts(route(task, GYRO)) == of_route
    assert experts(route(task, GYRO, (1,))) == of_update


def test_with_kd_an_update_moves_the_experts_of_its_route_though_no_domain_travels() -> None:
    names = route(task_of(aggregate="kd", domains=3), GYRO)
    moved = [name for name in names if name.startswith(("features/", "gate/"))]
    assert experts(moved) == experts(names) == {f"{pair}." for pair in OWN}


def test_more_sensors_and_targets_are_more_experts_and_what_is_shared_is_none() -> None:
    found = experts(route(task_of(domains=2), Profile(("acc", "gyro"), ("label", "pose", "speed"))))
    assert len(found) == 2 * 3 * 2
    assert not any("_shared" in name for name in found)
