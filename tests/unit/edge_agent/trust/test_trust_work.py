"""Tasks and offers of a forger, replayed or put together anew: a device with a root does not act on them."""

import asyncio
import contextlib
import json

import pytest

from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import FOLDER, MetadataUpdater
from edge_agent.trust.verify_process import step
from edge_agent.trust.work_verifier import FILE, WorkVerifier
from protocol.cohort import pack, threshold
from protocol.errors import Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import BlobRef, Offer, decode, encode
from protocol.rollout import Trial
from protocol.tasks.announcement import TaskAnnouncement
from protocol.trust.metadata import draft
from protocol.trust.signed_work import MAX_BYTES, draft_offer, draft_task
from tests.support.agent.bundle import ref_of
from tests.support.agent.data import toy_task
from tests.support.clock import ManualClock
from tests.support.identity.trust import (
    ME,
    NOW,
    Keys,
    decided,
    pointer,
    root,
    secret,
    signed,
    signed_offer,
    signed_task,
)
from tests.unit.edge_agent.deployment.test_agent_deploy import Shelf
from tests.unit.edge_agent.trust.test_trust_agent import EXCHANGED

TASK = TaskAnnouncement.of(toy_task())
GRAPHS = {name: BlobRef(digest=digest(name.encode()), size=9) for name in ("acc", "gyr")}
OFFER = Offer(task="toy", round=3, base="ab" * 32, base_size=100, closes_in_s=60.0, below=threshold(7))
OTHER = BlobRef(digest="0" * 64, size=9)


class Device:
    """A device's trust and verifier; ``started``: roles of the children that it would have started."""

    def __init__(self, folder, first=None):
        folder.mkdir(exist_ok=True)
        self.folder, self.shelf, self.clock = folder, Shelf(folder), ManualClock(wall=NOW)
        self.first = TrustedMetadata.begin(first or root())
        self.started = []
        self.start()

    def start(self):
        self.trust = MetadataUpdater(
            self.folder / FOLDER, self.first, self.shelf, self.clock, 1, ME, self.child
        )
        self.verifier = WorkVerifier(self.trust, self.folder, self.clock)
        return self

    async def child(self, trusted, role, data, now):
        self.started.append(role)
        return step(trusted, role, data, now)

    async def takes(self, work):
        """Through the wire, as from the broker."""
        self.verifier.give(decode(encode(work), type(work)))
        return await self.verifier.next()

    async def refuses(self, work, words):
        with pytest.raises(Refused, match=words):
            await self.takes(work)
        assert self.verifier.why
        assert self.verifier.since is not None

    @property
    def serials(self):
        file = self.folder / FOLDER / FILE
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path / "d")


async def test_what_is_signed_is_acted_on_and_verified_once(device):
    for _ in range(3):
        assert await device.takes(signed_task(TASK)) == signed_task(TASK)
        assert (await device.takes(signed_offer(OFFER))).round == 3
    assert device.started == ["task", "offer"]
    assert (device.verifier.why, device.verifier.since) == ("", None)
    assert device.serials == {"epoch": 1, "task": 1, "offer": 1}


async def test_attack_an_unsigned_task_or_offer(device):
    for work in (TASK, OFFER):
        await device.refuses(work, "untrusted: it is not signed, and this device has a root")
    assert "the task that came last" in device.verifier.why
    assert "the offer that came last" in device.verifier.why
    assert (device.started, device.serials) == ([], None)


async def test_attack_a_task_that_was_altered(device):
    quieter = TASK.model_copy(update={"task": TASK.task.replace('"toy"', '"tox"')})
    for altered, words in (
        (quieter, "the task is not the one that was signed"),
        (TASK.model_copy(update={"task": TASK.task + " "}), "the task is not the one that was signed"),
        (TASK.model_copy(update={"needs": ()}), "needs is not what was signed"),
    ):
        text = signed_task(TASK).signed
        await device.refuses(altered.model_copy(update={"signed": text}), words)
    assert device.started == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base": "cd" * 32}, "version cdcdcdcdcdcd is offered, abababababab was signed"),
        ({"base_size": 101}, "version abababababab is offered"),
        ({"round": 4}, "round 4 attempt 1 is offered, 3 attempt 1 was signed"),
        ({"attempt": 2}, "round 3 attempt 2 is offered, 3 attempt 1 was signed"),
        ({"below": None}, "the cohort of devices is not the one that was signed"),
        ({"below": threshold(8)}, "the cohort of devices is not the one that was signed"),
        ({"salt": "12" * 16}, "the cohort of devices is not the one that was signed"),
        ({"members": pack("0" * 32, ["d"])}, "the cohort of devices is not the one that was signed"),
        ({"task": "other"}, "task 'other' is offered"),
        ({"graphs": {"acc": OTHER}}, "the encoder model of acc is not one that was signed"),
        ({"graphs": {"new": OTHER}}, "the encoder model of new is not one that was signed"),
        ({"clip": 9.0}, "clip 9.0 is offered, None was signed"),
    ],
)
async def test_attack_an_offer_that_was_put_together_anew(device, change, words):
    good = signed_offer(OFFER.model_copy(update={"graphs": GRAPHS}))
    await device.refuses(good.model_copy(update=change), words)
    assert device.started == []


async def test_what_changes_while_a_round_is_open_may_differ(device):
    """One signature serves all repetitions of an offer."""
    text = signed_offer(OFFER).signed
    for now in ({}, {"closes_in_s": 1.0, "answer_within_s": 0.5}, {"delivered": pack("0" * 32, ["a"])}):
        await device.takes(OFFER.model_copy(update={**now, "signed": text}))
    assert device.started == ["offer"]


async def test_attack_the_task_or_offer_of_another_fleet(device):
    for work in (signed_task(TASK, fleet="g"), signed_offer(OFFER, fleet="g")):
        await device.refuses(work, "it was signed for fleet 'g', and this is 'f'")


async def test_attack_another_key_signs(device):
    await device.refuses(signed_offer(OFFER, 9), "no key of root 1 for targets")
    await device.refuses(signed_task(TASK, 3), "no key of root 1 for targets")  # that of the timestamp
    assert device.started == []


async def test_attack_a_signature_that_names_the_right_key_costs_one_child_and_writes_nothing(device):
    good = json.loads(signed_offer(OFFER).signed)
    good["signatures"][0]["sig"] = secret(9).sign(b"anything").hex()
    forged = OFFER.model_copy(update={"signed": json.dumps(good)})
    for _ in range(20):
        await device.refuses(forged, "untrusted")
    assert (device.started, device.serials) == (["offer"], None)
    for size in range(500):  # ever new ones: they wait in one place
        device.verifier.give(forged.model_copy(update={"signed": forged.signed + " " * size}))
    with pytest.raises(Refused):
        await device.verifier.next()
    assert len(device.started) == 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await device.verifier.next()


async def test_attack_what_the_key_signed_as_something_else(device):
    pointed = decided(pointer(b"bundle").model_copy(update={"trial": Trial()}))
    as_task = draft_task(TASK, "f", 1, 1, ())
    targets = signed(draft("targets", 1, NOW, 60, {"targets": {}}), *Keys().online["targets"]).decode()
    for text in (pointed.decision, targets, signed(as_task, 5).decode()):
        await device.refuses(OFFER.model_copy(update={"signed": text}), "malformed: offer")
    for text in (pointed.decision, targets, signed_offer(OFFER).signed):
        await device.refuses(TASK.model_copy(update={"signed": text}), "malformed: task")
    assert device.started == []


async def test_attack_an_older_offer_or_task_is_replayed_over_a_restart_too(device):
    old_offer, old_task = signed_offer(OFFER, serial=7), signed_task(TASK, serial=6)
    await device.takes(old_task)
    await device.takes(old_offer)
    newer = OFFER.model_copy(update={"round": 4, "base": "cd" * 32})
    await device.takes(signed_offer(newer, serial=8))
    await device.takes(signed_task(TASK, serial=9))
    for _ in range(2):
        await device.refuses(old_offer, "rolled_back: it is an older one: its serial is 7, and .* 8 already")
        await device.refuses(old_task, "rolled_back: it is an older one: its serial is 6, and .* 9 already")
        device.start()
    assert (await device.takes(signed_offer(newer, serial=8))).round == 4, "the same again is no replay"


async def test_damaged_serials_are_forgotten_and_not_fatal(device):
    await device.takes(signed_offer(OFFER, serial=7))
    (device.folder / FOLDER / FILE).write_bytes(b"rotten")
    await device.start().takes(signed_offer(OFFER, serial=6))


async def test_a_task_leads_to_the_newest_root_and_what_the_old_key_signed_counts_no_more(device):
    await device.takes(signed_task(TASK, serial=100))
    await device.takes(signed_offer(OFFER, serial=100))
    second = root(EXCHANGED, 2, by=(1,))
    refs = (ref_of(device.shelf.put(second)),)
    by_new = {"keys": EXCHANGED, "root": 2}
    await device.refuses(signed_offer(OFFER, **by_new), "no key of root 1 for targets")
    await device.takes(signed_task(TASK, serial=5, roots=refs, **by_new))
    assert device.trust.status()["root"] == 2
    await device.takes(signed_offer(OFFER, serial=5, **by_new))  # serials of another signer say nothing
    await device.refuses(signed_offer(OFFER, serial=200), "no key of root 2 for targets")
    assert device.serials == {"epoch": 2, "task": 5, "offer": 5}


async def test_attack_what_the_key_signed_before_it_was_taken_back_and_came_again(device):
    old = signed_offer(OFFER, serial=900)
    roots = [root(EXCHANGED, 2, by=(1,)), root(Keys(), 3, by=(1,))]
    refs = [ref_of(device.shelf.put(data)) for data in roots]
    await device.takes(signed_task(TASK, roots=refs, root=3))
    await device.refuses(old, "expired: it was signed under root 1, and what counts begins with root 3")


async def test_a_forged_root_leads_nowhere(device):
    forged = ref_of(device.shelf.put(root(EXCHANGED, 2, by=(9,))))
    task = signed_task(TASK, roots=[forged], root=2, keys=EXCHANGED)
    await device.refuses(task, "untrusted: root 2")
    assert device.trust.status()["root"] == 1


async def test_a_root_that_is_not_here_yet_is_waited_for_and_offers_go_on(device, monkeypatch):
    monkeypatch.setattr("edge_agent.trust.work_verifier.RETRY_S", 0.05)
    second = root(Keys(), 2, by=(1,))
    task = signed_task(TASK, roots=[ref_of(second)], root=2)
    with pytest.raises(Transient):
        await device.takes(task)
    await device.takes(signed_offer(OFFER))
    device.shelf.put(second)
    assert await device.verifier.next() == task
    assert device.verifier.why == ""


async def test_what_waits_is_tried_again_while_other_things_come_all_the_time(device, monkeypatch):
    monkeypatch.setattr("edge_agent.trust.work_verifier.RETRY_S", 0.1)
    second = root(Keys(), 2, by=(1,))
    task = signed_task(TASK, roots=[ref_of(second)], root=2)
    with pytest.raises(Transient):
        await device.takes(task)
    device.shelf.put(second)
    acted_on = []
    async with asyncio.timeout(60):
        while task not in acted_on:
            device.verifier.give(OFFER)
            with contextlib.suppress(Refused):
                acted_on.append(await device.verifier.next())
            await asyncio.sleep(0.01)


async def test_a_root_that_is_given_up_as_soon_as_it_is_here_is_waited_for(device, monkeypatch):
    second, pull = root(Keys(), 2, by=(1,)), device.shelf.fetch
    device.shelf.put(second)

    async def vanishing(ref, timeout_s):
        path = await pull(ref, timeout_s)
        path.unlink()
        return path

    monkeypatch.setattr(device.shelf, "fetch", vanishing)
    with pytest.raises(Transient):
        await device.takes(signed_task(TASK, roots=[ref_of(second)], root=2))


async def test_releases_mix_what_is_signed_is_what_came(device):
    """Keys that this lichen does not know, in the message and in what was signed, do no harm."""
    said = draft_offer(OFFER, "f", 1, 1)
    said.signed["patience"] = "long"
    text = signed(said, *Keys().online["targets"]).decode()
    wire = json.loads(encode(OFFER.model_copy(update={"signed": text}))) | {"patience": "long"}
    device.verifier.give(decode(json.dumps(wire).encode(), Offer))
    assert (await device.verifier.next()).signed == text
    newer = TASK.model_copy(update={"task": TASK.task[:-1] + ',"patience":"long"}'})
    assert (await device.takes(signed_task(newer))).read() == TASK.read()


async def test_without_a_root_nothing_is_verified(tmp_path):
    trust = MetadataUpdater(tmp_path, None, Shelf(tmp_path), ManualClock(), 1, ME)
    verifier = WorkVerifier(trust, tmp_path, ManualClock())
    assert not verifier.active
    verifier.give(OFFER)
    assert await verifier.next() == OFFER


def test_statements_fit_into_their_bounds_with_the_longest_of_everything():
    name = "n" * 56
    graphs = {f"{n:02}" + "n" * 54: BlobRef(digest="0" * 64, size=512 * 1024 * 1024) for n in range(16)}
    offer = OFFER.model_copy(update={"task": name, "round": 2**31 - 1, "graphs": graphs})
    text = signed_offer(offer, serial=2**31 - 1, fleet=name, root=2**31 - 1).signed
    assert len(text) < MAX_BYTES["offer"]
    roots = [BlobRef(digest="0" * 64, size=65536)] * 256
    long = TaskAnnouncement(needs=tuple(f"n{n:063}" for n in range(64)), task="{}")
    text = signed_task(long, serial=2**31 - 1, fleet=name, root=257, roots=roots).signed
    assert len(text) < MAX_BYTES["task"]
