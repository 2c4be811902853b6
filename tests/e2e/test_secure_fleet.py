"""Secure rounds of real processes: over mutual TLS with certificates, and with SIGKILLs at each stage."""

import json

import pytest

from coordinator.status.history import read
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.simulation.processes.testbed import COORDINATOR
from models.privacy.central_account import CentralAccount
from models.privacy.shared_noise import SharedNoise
from protocol.bundle import unpack
from protocol.secure_aggregation.updates import MASKED
from protocol.tasks.folding import Privacy, Robust, SecureAggregation
from protocol.tasks.network import Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from runtime.storage.blob_store import BlobStore
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture

pytestmark = [pytest.mark.long, pytest.mark.mosquitto, pytest.mark.timeout(400)]
DEVICES = ("d0", "d1", "d2", "d3")
TASK = Task(
    name="t",
    method="fedavg",
    labels=("a", "b"),
    modalities=(Modality(name="v", kind="vector", channels=8, rate_hz=1.0),),
    window=Window(length_s=1.0, stride_s=1.0),
    network=Network(kind="linear", feature_dim=8),
    rounds=Rounds(count=2, min_devices=3, min_windows=8, deadline_s=40.0),
    robust=Robust(outlier_factor=0),
    secure_aggregation=SecureAggregation(min_devices=3, identities="none"),
)


@pytest.fixture
def task() -> Task:
    return TASK


@pytest.fixture
def export() -> dict:
    return {"enabled": False}


@pytest.fixture
def fleet(mosquitto, task, export):  # noqa: F811
    with ProcessFleet(task, mosquitto.port) as made:
        start_coordinator(made, export)
        for number, name in enumerate(DEVICES):
            start_device(made, number, name)
        yield made


def start_coordinator(fleet: ProcessFleet, export: dict | None = None) -> None:
    given = export or {"enabled": False}
    fleet.coordinator(spread_s=1.0, offer_every_s=0.5, exit_when_done=True, export=given)


def start_device(fleet: ProcessFleet, number: int, name: str) -> None:
    recording = fleet.root / f"{name}.npz"
    if not recording.exists():
        noise_recording(recording, TASK, 200, number)
    fleet.agent(
        name,
        recording,
        speed=50.0,
        infer={"enabled": False},
        outbox={"resend_s": 1.0},
        state_every_s=0.5,
        secure_aggregation={"without_identities": True},
    )


def finished(fleet: ProcessFleet) -> dict:
    fleet.until(lambda: fleet.bed.children[COORDINATOR].pid is None, 200, "the rounds did not end")
    return read(fleet.files.state(COORDINATOR))


def stages(fleet: ProcessFleet, round_: int) -> list[str]:
    """The stages that the coordinator has reached, by its log."""
    lines = [json.loads(line) for line in fleet.said(COORDINATOR).splitlines() if line.startswith("{")]
    found, current = [], 0
    for line in lines:
        if line["event"] == "secure_attempt":
            current = line["round"]
            found += ["keys"] if current == round_ else []
        elif line["event"] == "secure_stage" and current == round_:
            found.append(line["stage"])
    return found


def check_journal(fleet: ProcessFleet) -> None:
    """All updates are here, and none of them has a tensor of the model."""
    folder = fleet.files.state(COORDINATOR) / "updates" / "1"
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert content.count(MASKED.encode()) == len(DEVICES)
    assert b"head" not in content


@pytest.mark.parametrize("victim", [COORDINATOR, "d1"])
@pytest.mark.parametrize("stage", ["keys", "shares", "masked_updates", "unmask"])
def test_a_sigkill_at_any_stage_is_survived(fleet, victim, stage):
    fleet.until(lambda: stage in stages(fleet, 1), 60, f"stage {stage} of round 1")
    fleet.kill(victim)
    if victim == COORDINATOR:
        if stage == "unmask":
            check_journal(fleet)
        start_coordinator(fleet)
    else:
        start_device(fleet, 1, "d1")
    found = finished(fleet)
    assert found["phase"] == "done"
    assert [version["version"] for version in found["versions"]] == [0, 1, 2]
    assert all(len(version["devices"]) >= 3 for version in found["versions"][1:])
    updates = [update for round_ in found["rounds"] for update in round_["updates"]]
    assert updates
    assert {(update["samples"], tuple(update["metrics"])) for update in updates} == {(0, ())}


def test_all_devices_are_in_each_version(fleet):
    found = finished(fleet)
    assert [len(version["devices"]) for version in found["versions"]] == [0, 4, 4]
    assert stages(fleet, 1)[-1] == "done"
    reports = [round_["secure"] for round_ in found["rounds"]]
    assert [[(one["phase"], one["inside"], one["lost"]) for one in of] for of in reports] == [
        [("done", 4, [])]
    ] * 2


class TestAFailedAttempt:
    """All four devices are needed, and one is gone for the first attempt."""

    @pytest.fixture
    def task(self) -> Task:
        rounds = TASK.rounds.model_copy(update={"min_devices": 4, "deadline_s": 15.0, "count": 1})
        return TASK.model_copy(update={"rounds": rounds})

    def test_is_followed_by_another_with_new_masks(self, fleet):
        # before its update is masked: with that the sum could be opened without it
        fleet.until(lambda: "keys" in stages(fleet, 1), 60, "the first stage")
        fleet.kill("d1")
        fleet.until(lambda: "attempt 1 got" in fleet.said(COORDINATOR), 60, "the first attempt's end")
        start_device(fleet, 1, "d1")
        found = finished(fleet)
        assert found["versions"][1]["devices"] == list(DEVICES)
        assert stages(fleet, 1).count("keys") >= 2
        first, *_, last = found["rounds"][0]["secure"]
        assert first["phase"] == "failed"
        assert first["why"]
        assert first["lost"][-1]["devices"] == ["d1"]
        assert (last["phase"], last["lost"]) == ("done", [])
        assert stages(fleet, 1)[-1] == "done"


class TestNoiseOfDevices:
    """With ``[privacy]``, too: three devices share the noise, and four add it."""

    PRIVACY = Privacy(clip=0.5, noise_multiplier=2.0, max_epsilon=20.0)

    @pytest.fixture
    def task(self) -> Task:
        return TASK.model_copy(update={"privacy": self.PRIVACY})

    @pytest.fixture
    def export(self) -> dict:
        return {"every_rounds": 1, "int8": False}

    def test_a_sigkill_before_the_masked_update_is_sent_changes_nothing(self, fleet):
        fleet.until(lambda: "masked_updates" in stages(fleet, 1), 60, "the stage of masked updates")
        fleet.kill("d1")
        start_device(fleet, 1, "d1")
        found = finished(fleet)
        assert found["phase"] == "done"
        assert all(len(version["devices"]) >= 3 for version in found["versions"][1:])
        noise = SharedNoise.of(self.PRIVACY, TASK.secure_aggregation)
        accounts = [CentralAccount.after(self.PRIVACY, n, shared=noise).as_json() for n in range(3)]
        assert [version["privacy"] for version in found["versions"]] == accounts
        assert accounts[2]["noise_by"] == "devices"
        digest = next(one["digest"] for one in found["exports"] if one["version"] == 2)
        manifest, _ = unpack(BlobStore(fleet.files.state(COORDINATOR) / "blobs").get(digest))
        assert manifest.privacy == accounts[2]
        assert manifest.secure_aggregation is not None
        assert manifest.secure_aggregation["devices"] == len(found["versions"][2]["devices"])
        assert "nobody saw a single one" in str(manifest.secure_aggregation["words"])
