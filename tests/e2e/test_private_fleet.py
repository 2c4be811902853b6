"""Real daemons under ``[privacy]``: clipped, noised, accounted, killed, ended; a weaker one gets nothing."""

import shutil
from collections.abc import Iterator

import pytest

from coordinator.privacy.noise_secret import FILE
from coordinator.status import history
from edge_agent.tasks.consent import CONSENT_FILE
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.privacy.central_account import CentralAccount
from protocol.bundle import unpack
from protocol.errors import LichenError
from protocol.tasks.folding import AdaptiveClip, Privacy
from runtime.storage.blob_store import BlobStore
from tests.e2e.test_prototype_fleet import ONE_THREAD, REST, WALK, WAVE, record, task_of

DEVICES = ("left", "right")
PRIVACY = Privacy(
    clip=0.5, noise_multiplier=2.0, max_epsilon=7.0, adaptive_clip=AdaptiveClip(count_noise=1.5)
)
TASK = task_of(9, len(DEVICES)).model_copy(
    update={"method": "fedavg", "privacy": PRIVACY, "config": {"epochs": 2, "batch": 32}}
)
LAST = 2
"""The third version would exceed ``max_epsilon``."""


@pytest.fixture
def fleet() -> Iterator[ProcessFleet]:
    with ProcessFleet(TASK) as made:
        made.broker()
        yield made


def read(fleet: ProcessFleet) -> dict:
    try:
        return history.read(fleet.files.state("coordinator"))
    except LichenError:
        return {"versions": [], "rounds": [], "phase": "", "devices": []}


def serve(fleet: ProcessFleet) -> None:
    fleet.coordinator(spread_s=0.5, export={"every_rounds": 1, "int8": False})


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_private_fleet_survives_a_kill_ends_in_time_and_refuses_to_be_weakened(fleet: ProcessFleet) -> None:
    for seed, device in enumerate(DEVICES):
        file = record(fleet.root / f"{device}.npz", (REST, WALK, WAVE), seed)
        floors = {"consent": "protected", "min_noise_multiplier": 1.0, "max_clip": 500.0}
        fleet.agent(device, file, speed=60, env=ONE_THREAD, state_every_s=1.0, privacy=floors)
    serve(fleet)
    fleet.until(lambda: len(read(fleet)["versions"]) > 1, 300, "version 1 is made")
    fleet.kill("coordinator")
    secret = (fleet.files.state("coordinator") / FILE).read_text()
    serve(fleet)
    fleet.until(lambda: read(fleet)["phase"] == "done", 300, "the rounds are over")
    found = read(fleet)
    assert found["version"] == LAST
    assert (fleet.files.state("coordinator") / FILE).read_text() == secret
    accounts = [row["privacy"] for row in found["versions"]]
    clips = [one["clip"] for one in accounts]
    assert accounts == [CentralAccount.after(PRIVACY, n, clip).as_json() for n, clip in enumerate(clips)]
    assert clips[0] == 0.5
    # a step up and one down may end at the same clip, and half of the devices below it move it nowhere
    assert len({*clips}) > 1, "it follows the norms, with noise"
    assert accounts[-1]["epsilon"] <= 7.0
    for round_ in found["rounds"]:
        assert sorted(one["device"] for one in round_["updates"]) == sorted(DEVICES)
        assert {one["weight"] for one in round_["updates"]} == {1}
    digest = next(one["digest"] for one in found["exports"] if one["version"] == LAST)
    manifest, _ = unpack(BlobStore(fleet.files.state("coordinator") / "blobs").get(digest))
    assert manifest.privacy is not None
    assert manifest.privacy["words"] == accounts[-1]["words"]

    # the operator begins anew with less noise: the devices' floors hold, and so does their consent
    fleet.stop("coordinator")
    shutil.rmtree(fleet.files.state("coordinator"))
    weak = PRIVACY.model_copy(update={"noise_multiplier": 1.5})
    fleet.files.write_task(TASK.model_copy(update={"privacy": weak}))
    write_toml(fleet.files.config("coordinator"), fleet.files.coordinator(spread_s=0.5))
    serve(fleet)
    for device in DEVICES:
        words = "privacy.noise_multiplier was 2.0 and is 1.5"
        fleet.until(lambda device=device, words=words: words in fleet.said(device), 120, "it refuses")
        assert (fleet.files.state(device) / CONSENT_FILE).is_file()
    fleet.until(lambda: len(read(fleet)["devices"]) == len(DEVICES), 60, "both have reported")
    assert len(read(fleet)["versions"]) <= 1
    assert not any(round_["updates"] for round_ in read(fleet)["rounds"])
