"""Agents and coordinators of two releases in one fleet, both ways; state folders go forth and back.

Real processes, a real broker. Each release of ``releases.toml`` against today's, and a made-up next one.
"""

from pathlib import Path

import pytest

from tests.compat.fleet import DEVICES, Fleet
from tests.compat.trees import Release, Tree, checked_out, made_up, released, today
from tests.support.network.brokers import mosquitto_process

pytestmark = pytest.mark.mosquitto


async def both_ways(fleet: Fleet, one: Tree, other: Tree) -> set[tuple[str, str]]:
    """Each of the two is coordinator, and agent of the other; each gets the other's state folders.

    Args:
        fleet: whose.
        one: today's release.
        other: another.

    Returns:
        Refusals that were counted: device and reason.
    """
    config, history = str(fleet.layout.config("coordinator")), {}
    for coordinator, agents in (
        (one, {"d1": other, "d2": one}),
        (other, {"d1": one, "d2": other}),
        (one, {"d1": other, "d2": one}),
    ):
        before = fleet.version
        if history:
            coordinator.run("coordinator", "downgrade", "--config", config)
        async with fleet.running(coordinator, agents):
            await fleet.until(lambda before=before: fleet.version > before)
        history = fleet.history(coordinator)
        made = next(row for row in history["rounds"] if row["round"] == before + 1)
        delivered = {update["device"] for update in made["updates"] if not update["lost"]}
        assert delivered == set(DEVICES), f"{coordinator.name} is coordinator"
    return {(row["device"], row["reason"]) for row in history["refusals"]}


@pytest.mark.parametrize("release", released(), ids=lambda release: release.name)
async def test_a_release_and_today_s_are_one_fleet(tmp_path: Path, release: Release) -> None:
    other = checked_out(release, tmp_path / release.name)
    broker = mosquitto_process(tmp_path / "broker").start()
    try:
        await both_ways(Fleet(tmp_path / "fleet", broker.port), today(), other)
    finally:
        broker.stop()


@pytest.mark.long
async def test_a_made_up_next_release_and_today_s_are_one_fleet_or_say_why_not(tmp_path: Path) -> None:
    other, one = made_up(tmp_path / "next"), today()
    broker = mosquitto_process(tmp_path / "broker").start()
    fleet = Fleet(tmp_path / "fleet", broker.port)
    try:
        refusals = await both_ways(fleet, one, other)
        new = {("d1", "too_weird"), *((d, "unknown_kind") for d in (*DEVICES, "(unknown)"))}
        assert new <= refusals, "counted, each under its word"
        assert "malformed" not in {reason for _, reason in refusals}
        assert "too_weird: this device is too weird for the next release" in fleet.log("d1")
        assert fleet.status("d1")["outbox"]["waiting"] == 0
        fleet.announce(taper=0.9)
        async with fleet.running(other, {"d1": one, "d2": other}):
            await fleet.until(lambda: fleet.view.devices["d1"].refuses)
            words = "the task needs taper, which this lichen does not know"
            assert words in (fleet.view.devices["d1"].refuses or "")
            config = str(fleet.layout.config("coordinator"))
            why = other.run("coordinator", "status", "--why", "--config", config)
            assert words in " ".join(why.split())
    finally:
        broker.stop()


def test_a_release_is_taken_out_of_the_history(tmp_path: Path) -> None:
    tree = checked_out(Release("here", "HEAD"), tmp_path)
    assert (tree.folder / "coordinator" / "storage" / "schema.py").is_file()
    said = tree.run("--version")
    assert said.startswith("lichen")
