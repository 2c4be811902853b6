"""The device's half of enrolment and renewal against the coordinator's: both real, over HTTPS."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import Repository
from edge_agent.identity import enrolment_api, keys
from edge_agent.identity.enrolment import enrol
from edge_agent.identity.files import IdentityFiles, folder_of
from edge_agent.identity.renewal_job import renew
from edge_agent.identity.retry import RetryPolicy
from edge_agent.trust.trusted_metadata import TrustedMetadata
from protocol.errors import Misconfigured, Reason, Refused, Transient
from tests.support.identity.desk import service
from tests.support.network.brokers import HOST

DAY_S = 86400.0


def invite_of(client, name: str | None = "d1"):
    return client.desk.invite(name, 3600.0).model_copy(update={"url": f"https://{HOST}:{client.port}"})


async def enrolled(folder: IdentityFiles, invite, device: str = "d1", wait_s: float = 0.0, **options):
    return await asyncio.to_thread(
        enrol, folder, invite, device, RetryPolicy(wait_s, lambda _: None), timeout_s=5.0, **options
    )


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "device")


async def test_enrolled_and_the_book_knows(tmp_path, folder):
    async with service(tmp_path) as client:
        identity = (await enrolled(folder, invite_of(client))).identity
        row = client.desk.book.devices()[0]
        assert (row.name, row.status, row.serial) == ("d1", "active", identity.serial)
        assert identity.broker_host == client.desk.broker_host
        assert abs(identity.issued_at - time.time()) < 30, "the service says what time it is"
        assert identity.not_after == pytest.approx(time.time() + 90 * DAY_S, abs=60)


async def test_the_root_comes_with_the_certificate_and_with_its_renewal(tmp_path, folder):
    async with service(tmp_path) as client:
        invite = invite_of(client)
        await enrolled(folder, invite)
        assert not folder.root.exists()
        path, key = client.desk.places.trust_root, Key.new()
        repository = Repository(path.parent)
        root_ceremony.init(repository, [key], 1, 365 * DAY_S, time.time())
        await asyncio.to_thread(renew, folder, 5.0)
        assert TrustedMetadata.begin(folder.root.read_bytes()).root.said.version == 1
        root_ceremony.rotate(repository, [key], None, None, 365 * DAY_S, time.time())
        await asyncio.to_thread(renew, folder, 5.0)
        assert TrustedMetadata.begin(folder.root.read_bytes()).root.said.version == 1, (
            "the first leads to the second"
        )
        again = folder_of(tmp_path / "second")
        await enrolled(again, invite_of(client, "d2"), "d2")
        assert TrustedMetadata.begin(again.root.read_bytes()).root.said.version == 2


async def test_an_answer_that_was_lost_is_given_again(tmp_path, folder, monkeypatch):
    async with service(tmp_path) as client:
        invite = invite_of(client)
        honest = enrolment_api.enrol

        def lost(*args):
            honest(*args)
            raise Transient("the answer was lost")

        monkeypatch.setattr(enrolment_api, "enrol", lost)
        with pytest.raises(Transient):
            await enrolled(folder, invite)
        monkeypatch.setattr(enrolment_api, "enrol", honest)
        await enrolled(folder, invite)
        assert len(client.desk.book.devices()) == 1
        assert client.desk.book.revoked() == [], "it was one certificate, asked for twice"


async def test_waiting_then_approved(tmp_path, folder):
    async with service(tmp_path) as client:
        invite = invite_of(client, None)
        with pytest.raises(Transient, match="lichen device approve d7") as caught:
            await enrolled(folder, invite, "d7")
        shown = client.desk.book.devices()[0].key[:16]
        assert f"key {shown}" in str(caught.value), "both sides show the same, to compare"
        client.desk.book.approve("d7")
        assert (await enrolled(folder, invite, "d7")).identity.device == "d7"


async def test_an_invite_works_once(tmp_path, folder):
    async with service(tmp_path) as client:
        invite = invite_of(client)
        await enrolled(folder, invite)
        thief = folder_of(tmp_path / "thief")
        with pytest.raises(Refused, match="used already") as caught:
            await enrolled(thief, invite)
        assert caught.value.reason == Reason.BAD_INVITE
        with pytest.raises(Refused, match="for another device"):
            await enrolled(thief, invite_of(client, "d2"), "d3")


async def test_the_invite_of_another_coordinator_sends_nothing_here(tmp_path, folder):
    async with service(tmp_path / "a") as one, service(tmp_path / "b") as other:
        forged = invite_of(one).model_copy(update={"url": f"https://{HOST}:{other.port}"})
        with pytest.raises(Refused, match="nothing was sent") as caught:
            await enrolled(folder, forged)
        assert caught.value.reason == Reason.WRONG_DIGEST
        assert not other.office.app.refused, "no token and no request arrived"


async def test_renewed_again_and_again_each_time_with_a_new_key(tmp_path, folder):
    async with service(tmp_path) as client:
        await enrolled(folder, invite_of(client))
        seen = set()
        for _ in range(4):
            pem = folder.pair.read_bytes()
            seen.add((folder.read().serial, keys.key_pem(keys.load_key(pem, ""))))
            await asyncio.to_thread(renew, folder)
        assert len({serial for serial, _ in seen}) == len({key for _, key in seen}) == 4
        assert client.desk.book.devices()[0].serial == folder.read().serial
        assert client.desk.book.revoked() == [], (
            "the old one counts until it runs out: it may be in use still"
        )


async def test_a_renewal_whose_answer_was_lost_goes_on_with_the_same_key(tmp_path, folder, monkeypatch):
    async with service(tmp_path) as client:
        await enrolled(folder, invite_of(client))
        honest, before = enrolment_api.renew, folder.pair.read_bytes()

        def lost(*args):
            honest(*args)
            raise Transient("the answer was lost")

        monkeypatch.setattr(enrolment_api, "renew", lost)
        for _ in range(3):
            with pytest.raises(Transient):
                await asyncio.to_thread(renew, folder)
        assert folder.pair.read_bytes() == before
        monkeypatch.setattr(enrolment_api, "renew", honest)
        await asyncio.to_thread(renew, folder)
        assert client.desk.book.devices()[0].serial == folder.read().serial


async def test_after_a_revocation_nothing_is_renewed_until_it_is_invited_anew(tmp_path, folder):
    async with service(tmp_path) as client:
        await enrolled(folder, invite_of(client))
        before = folder.pair.read_bytes()
        client.desk.book.revoke("d1")
        with pytest.raises(Refused) as caught:
            await asyncio.to_thread(renew, folder)
        assert caught.value.reason == Reason.REVOKED
        assert folder.pair.read_bytes() == before
        again = invite_of(client)
        with pytest.raises(Misconfigured, match="--replace"):
            await enrolled(folder, again)
        await enrolled(folder, again, replace=True)
        await asyncio.to_thread(renew, folder)


async def test_a_stolen_pair_and_the_device_cannot_both_renew(tmp_path, folder):
    async with service(tmp_path) as client:
        await enrolled(folder, invite_of(client))
        thief = folder_of(tmp_path / "thief")
        thief.make()
        for name in ("device.pem", "ca.pem", "identity.json"):
            thief.write(thief.path / name, (folder.path / name).read_bytes())
        await asyncio.to_thread(renew, folder)
        with pytest.raises(Refused, match="exchanged before"):
            await asyncio.to_thread(renew, thief)


async def test_a_fleet_that_enrols_at_once_is_served(tmp_path):
    """Throttled attempts are tried again; nobody is lost."""
    # threads of their own: those of the loop belong to the service
    with ThreadPoolExecutor(12) as threads:
        await _all_at_once(tmp_path, threads)


async def _all_at_once(tmp_path, threads) -> None:
    loop = asyncio.get_running_loop()
    async with service(tmp_path) as client:
        folders = [folder_of(tmp_path / f"device-{i}") for i in range(12)]
        invites = [invite_of(client, f"d{i}") for i in range(12)]
        patience = [RetryPolicy(30.0, lambda _: None) for _ in folders]
        names = [f"d{i}" for i in range(12)]
        calls = zip(folders, invites, names, patience, strict=True)
        await asyncio.gather(*(loop.run_in_executor(threads, enrol, *call) for call in calls))
        assert len(client.desk.book.devices()) == 12
