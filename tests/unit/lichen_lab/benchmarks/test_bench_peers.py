"""``lichen bench peers``: what its figures are made of, and what it says where Flower is missing."""

import pytest

from lichen_lab.benchmarks import registry
from lichen_lab.benchmarks.suite.peers.flower_fleet import VARIABLE, require_flower
from lichen_lab.benchmarks.suite.peers.measure import Reading, figures, wait_rounds
from protocol.errors import Misconfigured, Transient


def test_a_figure_is_what_lies_between_two_readings_a_device_and_round() -> None:
    first = Reading(
        at=100.0, rounds=1, device_cpu_s=9.0, server_cpu_s=4.0, trained_cpu_s=6.0, up=1000, down=500
    )
    last = Reading(
        at=112.0, rounds=4, device_cpu_s=30.0, server_cpu_s=7.0, trained_cpu_s=18.0, up=7000, down=12500
    )
    found = figures(first, last, devices=2)
    assert found == {
        "device: CPU s a round beyond training": 1.5,
        "device: CPU s a round in training": 2.0,
        "device: kB a round sent": 1.0,
        "device: kB a round received": 2.0,
        "server: CPU s a round": 1.0,
        "s a round": 4.0,
    }


class Failing:
    """A fleet that does not get anywhere."""

    def rounds(self) -> int:
        return 0

    def failure(self) -> str:
        return "the coordinator ended with exit status 78"


def test_a_fleet_that_fails_ends_the_wait_with_its_reason() -> None:
    with pytest.raises(Transient, match="exit status 78"):
        wait_rounds(Failing(), 1, 60.0)


def test_without_flower_the_command_says_how_to_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(Misconfigured, match="make flower"):
        require_flower()
    assert "peers" in registry.names()
