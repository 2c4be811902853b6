"""Real daemons under ``[local_privacy]``: noise of the device, an account that survives a kill, its end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.status import history
from edge_agent.config.agent import LearnSettings
from edge_agent.storage.privacy_account import PRIVACY_FILE, PrivacyAccount
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from models.privacy.device_account import DeviceAccount, from_json
from protocol.errors import LichenError
from protocol.tasks.folding import LocalPrivacy
from tests.e2e.test_prototype_fleet import ONE_THREAD, REST, WALK, WAVE, record, task_of

DEVICES = ("left", "right")
LOCAL = LocalPrivacy(clip=0.5, noise_multiplier=4.0, max_epsilon=8.0)
TASK = task_of(30, len(DEVICES)).model_copy(
    update={"method": "fedavg", "local_privacy": LOCAL, "config": {"epochs": 1, "batch": 32}}
)
KEY = "local_privacy.max_epsilon of the task"


@pytest.fixture
def fleet() -> Iterator[ProcessFleet]:
    with ProcessFleet(TASK) as made:
        made.broker()
        yield made


def read(fleet: ProcessFleet) -> dict:
    try:
        return history.read(fleet.files.state("coordinator"))
    except LichenError:
        return {"versions": [], "rounds": [], "devices": []}


def account(folder: Path) -> DeviceAccount:
    return from_json(json.loads(json.loads((folder / PRIVACY_FILE).read_bytes())["account"]))


def steps(folder: Path) -> int:
    return sum(sum(store.trainings.values()) for store in account(folder).stores.values())


def lichen(fleet: ProcessFleet, *words: str, name: str = "coordinator", options: tuple[str, ...] = ()) -> str:
    """What a command prints, in one line."""
    config = str(fleet.files.config(name))
    command = [sys.executable, "-P", "-m", "lichen.cli", *words, "--config", config, *options]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def full(fleet: ProcessFleet) -> list[str]:
    """The devices that take part no more; a round needs both."""
    return [device for device in DEVICES if KEY in fleet.said(device)]


def start(fleet: ProcessFleet, device: str, seed: int) -> None:
    file = fleet.root / f"{device}.npz"
    if not file.exists():
        record(file, (REST, WALK, WAVE), seed)
    fleet.agent(device, file, speed=60, env=ONE_THREAD, state_every_s=1.0)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_devices_train_with_noise_until_their_accounts_are_full_also_after_a_kill(
    fleet: ProcessFleet,
) -> None:
    for seed, device in enumerate(DEVICES):
        start(fleet, device, seed)
    fleet.coordinator(spread_s=0.5)
    fleet.until(lambda: len(read(fleet)["versions"]) > 1, 300, "version 1 is made")
    left = fleet.files.state("left")
    fleet.kill("left")
    before = steps(left)
    assert before > 0
    start(fleet, "left", 0)
    fleet.until(lambda: bool(full(fleet)), 300, "the account of a device is full")
    fleet.until(lambda: lichen(fleet, "coordinator", "status").count(KEY) >= 1, 60, "the coordinator says so")
    found = read(fleet)
    assert steps(left) > before
    for device in DEVICES:
        folder = fleet.files.state(device)
        sent = [u["metrics"] for r in found["rounds"] for u in r["updates"] if u["device"] == device]
        assert sent
        assert not any({"loss", "accuracy"} & one.keys() for one in sent)
        assert steps(folder) >= sum(one["steps"] for one in sent), "a sent update is not in the account"
        assert account(folder).of_stretch().epsilon(LOCAL.delta) <= 8.0
        words = PrivacyAccount(folder / PRIVACY_FILE, LearnSettings()).words
        assert words is not None
        assert words["tasks"] == ["gestures"]
    # a device looks again at its next offer: the last round may have been over before
    fleet.until(
        lambda: any(
            "at most 8 is allowed" in lichen(fleet, "agent", "status", name=device, options=("--why",))
            for device in full(fleet)
        ),
        60,
        "a device says so, too",
    )
