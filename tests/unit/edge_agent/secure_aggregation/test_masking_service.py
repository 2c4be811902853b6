"""What a device's service of secure rounds refuses before and after a restart, and what it reports."""

import asyncio
import dataclasses
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from edge_agent.config.agent import AgentSettings
from edge_agent.secure_aggregation.events import IDLE, MaskingInvited, MaskingPhase, MaskingRules
from edge_agent.secure_aggregation.service import FILE, MaskingService
from edge_agent.secure_aggregation.table import apply
from lichen_lab.simulation.secure_rounds.fleet import identities
from protocol.errors import Misconfigured, Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import authority_of, signer_of
from protocol.secure_aggregation.keys import Secrets
from protocol.secure_aggregation.messages import KeysAnnounced, Roster, SharesSent, decode, encode
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


class Silent:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def publish(self, _topic, payload, **_):
        self.sent.append(payload)


async def test_after_a_restart_neighbours_keys_are_verified_before_the_device_has_trained_again(world):
    """A coordinator that holds the roster back until a restart puts no keys of its own into it."""
    authority, signers = identities(["d0", "x", "y"])
    folder = world.folder / "d0" / "identity"
    folder.mkdir(parents=True)
    (folder / "ca.pem").write_bytes(pem(authority.certificates[0]))
    own = signers["d0"]
    secret = own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "device.pem").write_bytes(pem(own.certificate) + secret)
    required = OPTIONS.model_copy(update={"identities": "required"})
    task, offer = TASK.model_copy(update={"secure_aggregation": required}), world.offer()
    attempt = Attempt("f", offer.task, offer.round, offer.attempt, offer.base, offer.salt)

    async def started() -> tuple[MaskingService, asyncio.Task]:
        service, running = await service_of(world)
        service.link = Silent()
        return service, running

    service, running = await started()
    training = asyncio.create_task(service.take_part(offer, task, world.vector("d0"), None))
    await world.until(lambda: bool(service.link.sent))
    announced = decode(service.link.sent[0], KeysAnnounced).keys
    training.cancel()
    running.cancel()
    rules = {name: MaskingRules(name, required, signers[name], authority) for name in ("x", "y")}
    said = {
        name: apply(its, IDLE, MaskingInvited(attempt, os.urandom(Secrets.entropy_bytes)))[1][0].message.keys
        for name, its in rules.items()
    }

    def roster(keys) -> bytes:
        return encode(Roster(attempt=attempt.digest, devices=3, own=announced, neighbours=keys))

    invented = {
        name: keys.model_copy(update={"signature": b"", "certificate": b""}) for name, keys in said.items()
    }
    service, running = await started()  # it trains again, and nobody has asked for its update
    with pytest.raises(Refused, match="certificate"):
        await service.on_answer(None, roster(invented))
    assert not service.link.sent
    await service.on_answer(None, roster(said))
    assert isinstance(decode(service.link.sent[0], SharesSent), SharesSent)
    running.cancel()

    (folder / "ca.pem").unlink()
    service, running = await started()
    service._state = dataclasses.replace(service._state, phase=MaskingPhase.KEYS, roster=None)
    with pytest.raises(Refused, match="this device has no authority to verify them with"):
        await service.on_answer(None, roster(said))
    running.cancel()


def pem(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
