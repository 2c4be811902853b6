"""What a device's service of secure rounds refuses before and after a restart, and what it reports."""

import asyncio

import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.secure_aggregation.service import FILE, MaskingService
from lichen_lab.simulation.secure_rounds.fleet import identities
from protocol.errors import Misconfigured, Refused
from protocol.secure_aggregation.credentials import authority_of, signer_of
from protocol.tasks.folding import SecureAggregation
from runtime.waits import StatusText
from tests.support.identity.certificates import make
from tests.support.secure.world import COORDINATOR, OPTIONS, TASK, FastClock, SecureWorld, WorldLink


@pytest.fixture
async def world(tmp_path):
    made = SecureWorld(tmp_path)
    yield made
    await made.close()


async def service_of(world, **tables):
    settings = AgentSettings.model_validate(
        {"fleet": "f", "device": "d0", "state_dir": world.folder / "d0", **tables}
    )
    clock = FastClock()
    service = MaskingService(settings, WorldLink(world, "d0"), clock, StatusText(clock, ""))
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0.05)
    return service, running


async def test_the_owner_decides_about_rounds_without_signed_keys(world):
    service, running = await service_of(world)
    with pytest.raises(Refused, match=r"Its owner may allow that: \[secure_aggregation\] without_identities"):
        await service.take_part(world.offer(), TASK, world.vector("d0"), None)
    running.cancel()
    assert not world.seen


async def test_a_device_without_an_identity_says_so(world):
    service, running = await service_of(world)
    required = OPTIONS.model_copy(update={"identities": "required"})
    task = TASK.model_copy(update={"secure_aggregation": required})
    with pytest.raises(Refused, match="keys are signed by identities, and this device has none"):
        await service.take_part(world.offer(), task, world.vector("d0"), None)
    folder = world.folder / "d0" / "identity"
    folder.mkdir(parents=True)
    (folder / "ca.pem").write_text("nothing")
    (folder / "device.pem").write_text("nothing")
    with pytest.raises(Misconfigured, match="certificate or its key cannot be read"):
        await service.take_part(world.offer(), task, world.vector("d0"), None)
    running.cancel()


async def test_after_a_restart_another_update_is_not_masked_under_the_same_masks(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    del world.entries["d0"]  # as if the outbox had lost it
    world.updates["d0"] = world.updates["d1"]  # trained again, with another result
    world.kill("d0")
    await world.until(lambda: bool(world.refusals))
    assert "another update is masked already in this attempt" in world.refusals[0]
    assert "d0" not in world.entries
    assert world.devices["d0"].status() == {}, "its secrets are forgotten"


async def test_the_same_update_is_masked_to_the_same_bytes_after_a_restart(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    before = world.entries.pop("d0").path.read_bytes()
    world.kill("d0")
    await world.until(lambda: "d0" in world.entries)
    assert world.entries["d0"].path.read_bytes() == before
    assert not world.refusals


async def test_a_damaged_file_is_none_and_a_status_says_the_stage(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    status = world.devices["d0"].status()["secure_round"]
    assert status["stage"].endswith("round 1, attempt 1: masked_update_sent")
    assert status["neighbours"] == 3
    (world.folder / "d0" / FILE).write_bytes(b"\xff")
    (world.folder / COORDINATOR / FILE).write_bytes(b"\xff")
    service, running = await service_of(world)
    assert service.status() == {}
    running.cancel()
    world.kill(COORDINATOR)
    await asyncio.sleep(0.1)
    with pytest.raises(Exception, match="unusable updates of d0, d1, d2, d3"):
        await world.close_round()


def test_identities_are_read_from_the_files_of_enrolment(tmp_path):
    folder = make(tmp_path)
    pair = (folder / "client.crt").read_bytes() + (folder / "client.key").read_bytes()
    authority, signer = authority_of((folder / "ca.crt").read_bytes()), signer_of(pair)
    authority.verify("client", signer.certificate, signer.sign(b"x"), b"x")
    with pytest.raises(Refused, match="not signed by its certificate's key"):
        authority.verify("client", signer.certificate, signer.sign(b"x"), b"y")
    other, _ = identities(["client"])
    with pytest.raises(Refused, match="not of the fleet's authority"):
        other.verify("client", signer.certificate, signer.sign(b"x"), b"x")
    for bad in (b"", (folder / "client.crt").read_bytes()):
        with pytest.raises(Misconfigured, match="cannot be read"):
            signer_of(bad)
    assert SecureAggregation().identities == "required"
