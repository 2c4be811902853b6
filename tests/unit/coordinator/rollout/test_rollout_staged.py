"""Versions that go out in stages, through the whole coordinator on a link without a broker."""

import contextlib
import io
import json
import os
import re

import pytest
from typer.testing import CliRunner

from coordinator.cli.rollout import app
from coordinator.cli.status import look
from coordinator.delivery import rollout_service
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.status.prometheus import _Collector
from lichen.cli import main
from protocol import messages
from protocol.bundle import BundleManifest, pack
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from protocol.messages import ModalityState, ModelPointer
from protocol.rollout import TrialReport
from protocol.tasks.task import Modality
from protocol.topics import Kind, broadcast_topic, device_topic
from tests.support.coordinator.bench import FakeLink, bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task
from tests.support.coordinator.rollouts import NoSigner
from tests.support.coordinator.routed import PartJobs, Parts

pytestmark = pytest.mark.both_engines

ACC, GYRO = {"acc": ModalityState(windows=(2, 1))}, {"gyro": ModalityState(windows=(2, 1))}
QUICK = {"mode": "staged", "canary": "label:site=barn", "soak_s": 0.0, "deadline_s": 60.0}


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)


class Devices:
    """Devices that say a trial; ``made``: the bench."""

    def __init__(self, made, **labels: dict[str, str]) -> None:
        self.made = made
        self.labels = labels

    async def say(self, name: str, model=None, trial=None, **more) -> None:
        known = {"model": model, "trial": trial, "labels": self.labels.get(name), **more}
        await self.made.online(name, roles=("observe", "train"), **known)

    async def tried(self, name: str, phase: str, why: str = "", **more) -> None:
        """The device says what became of what it was pointed at last."""
        pointer = self.pointer(name)
        trial = TrialReport(
            version=pointer.version,
            bundle=pointer.bundle.digest,
            serial=pointer.serial,
            phase=phase,
            why=why,
            measures={"windows": 20.0, "agreement": 0.9},
        )
        await self.say(name, pointer.bundle.digest, trial, **more)

    def own(self, name: str) -> list[bytes]:
        topic = device_topic(FLEET, name, Kind.MODEL)
        return [payload for t, payload, retain in self.made.link.sent if t == topic and retain]

    def fleet(self) -> list[ModelPointer]:
        topic = broadcast_topic(FLEET, Kind.FLEET_MODEL)
        return [messages.decode(p, ModelPointer) for t, p, _ in self.made.link.sent if t == topic]

    def pointer(self, name: str) -> ModelPointer:
        """What a device goes by: the later decision of the two."""
        said = [messages.decode(self.own(name)[-1], ModelPointer)] if any(self.own(name)[-1:]) else []
        return max((*self.fleet()[-1:], *said), key=lambda one: one.serial)


class Signer(NoSigner):
    """Remembers what it vouched for last."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def vouched(self, pointer, bundles, device=None):
        del device
        self.versions = [one.version for one in bundles]
        return pointer


async def deliver(made, devices, value: float = 1.0) -> None:
    """One round."""
    driver = made.app.driver
    await made.phase("collecting")
    round_ = driver.state.round
    for device in devices:
        await made.give(device, Kind.UPDATE, frame(header(device, round_, driver.state.manifest), value))
    await made.until(lambda: driver.state.version == round_)


def course(made):
    return made.app.storage.rollouts.course()


async def test_a_version_goes_to_the_canary_and_then_to_all(tmp_path) -> None:
    rollout = {**QUICK, "trial": {"windows": 5}}
    every = {"export": {"every_rounds": 1}}
    async with bench(tmp_path, tiny_task(count=2, min_devices=2), rollout=rollout, **every) as made:
        made.app.deployment.pointer_signer = signer = Signer()
        devices = Devices(made, a={"site": "barn"})
        for name in ("a", "b"):
            await devices.say(name)
        await deliver(made, "ab")
        await made.until(lambda: devices.own("a"))
        first = devices.pointer("a")
        assert (devices.own("b"), devices.fleet()) == ([], []), "nobody else heard of it"
        assert (first.version, first.trial.windows, first.serial > 0) == (1, 5, True)
        await devices.tried("a", "committed")
        await made.until(lambda: devices.own("b"))
        await devices.tried("b", "committed")
        await made.until(lambda: course(made).phase == "complete")
        await made.until(lambda: devices.own("a")[-1] == b"")
        assert devices.own("b")[-1] == b"", "their own pointers are taken back"
        fleet = devices.fleet()[-1]
        assert fleet.bundle == first.bundle
        assert fleet.serial > messages.decode(devices.own("b")[0], ModelPointer).serial
        await deliver(made, "ab", 2.0)
        await made.phase("done")
        await made.until(lambda: devices.pointer("a").version == 2)
        assert devices.pointer("b").version == 1, "all are pointed at the stable version meanwhile"
        kept = made.app.deployment.retained_digests()
        assert {first.bundle.digest, devices.pointer("a").bundle.digest} <= set(kept)
        assert signer.versions == [1, 2], "both may run"
        await devices.tried("a", "rolled_back", "agreement 0.1, at least 0.5")
        await made.until(lambda: course(made).phase == "failed")
        await made.until(lambda: devices.own("a")[-1] == b"")
        back = devices.fleet()[-1]
        assert (back.version, back.bundle) == (1, first.bundle)
        assert back.serial > fleet.serial
        assert signer.versions == [1]
        assert devices.own("b")[-1] == b"", "b never saw it"
        found, _ = look(made.app.storage.store, made.app.settings, 0.0)
        assert found["rollout"] == {"phase": "failed", "version": 2, "number": 2, "stage": 0}
        samples = {m.name: m.samples for m in _Collector(made.app.measured).collect()}
        phases = {s.labels["phase"]: s.value for s in samples["lichen_rollout_devices"]}
        assert phases == {"waiting": 0, "trial": 0, "committed": 0, "rolled_back": 1, "refused": 0}


async def test_what_is_retained_is_said_again_to_a_broker_that_lost_it(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), rollout=QUICK) as made:
        devices = Devices(made, a={"site": "barn"})
        for name in ("a", "b"):
            await devices.say(name)
        await deliver(made, "ab")
        await made.until(lambda: devices.own("a"))
        before = devices.own("a")[-1]
        made.link.sent.clear()
        await made.app.announcer.publish_all()
        assert devices.own("a") == [before], "the same decision, no new one"
        made.link.sent.clear()
        await devices.say("a", status="offline")
        await devices.say("a")
        await made.until(lambda: devices.own("a") or made.link.to("a", Kind.MODEL))


async def test_what_was_decided_without_a_broker_is_said_when_it_is_back_also_after_a_restart(
    tmp_path,
) -> None:
    task = tiny_task(count=1, min_devices=2)
    async with bench(tmp_path, task, rollout=QUICK) as made:
        devices = Devices(made, a={"site": "barn"})
        for name in ("a", "b"):
            await devices.say(name)
        await deliver(made, "ab")
        await made.until(lambda: devices.own("a"))
        made.link.connected = False
        await devices.tried("a", "committed")
        await made.until(lambda: "b" in course(made).rollout.members)
        assert devices.own("b") == []
    link = FakeLink()
    link.connected = False
    async with bench(tmp_path, task, rollout=QUICK, link=link) as made:
        devices = Devices(made)
        made.link.connected = True
        await made.app.announcer.publish_all()
        member = course(made).rollout.members["b"]
        assert devices.pointer("b").serial == member.serial
        assert "rollout 1 of version 1" in (await made.app.announcer.announcement()).waiting_for
        made.link.connected = False
        await devices.tried("b", "rolled_back", "bad")
        await made.until(lambda: course(made).phase == "failed")
        assert not course(made).rollout.cleared
        made.link.connected = True
        await made.until(lambda: course(made).rollout.cleared)
        assert devices.own("a")[-1:] == devices.own("b")[-1:] == [b""]


async def test_routed_devices_are_pointed_at_the_version_of_their_stage(tmp_path) -> None:
    settings = {"rollout": QUICK, "export": {"every_rounds": 1}}
    task = tiny_task(count=2, min_devices=3)
    async with bench(tmp_path, task, PartJobs(), Parts(), **settings) as made:
        made.app.deployment.pointer_signer = signer = Signer()
        devices = Devices(made, a={"site": "barn"})
        kinds = {"a": ACC, "b": ACC, "g": GYRO}
        for name, has in kinds.items():
            await devices.say(name, modalities=has)
        await deliver(made, kinds)
        for name, has in kinds.items():
            await made.until(lambda known=name: devices.own(known))
            await devices.tried(name, "committed", modalities=has)
        await made.until(lambda: course(made).phase == "complete")
        await made.until(lambda: course(made).rollout.cleared)
        before = {name: devices.pointer(name).bundle.digest for name in kinds}
        assert before["a"] == before["b"] != before["g"]
        assert devices.fleet() == []
        await deliver(made, kinds)
        await made.until(lambda: devices.pointer("a").version == 2)
        assert {devices.pointer(name).version for name in "bg"} == {1}
        assert signer.versions == [1, 1, 2, 2], "of both routes, both may run"
        kept = set(made.app.deployment.retained_digests())
        assert {*before.values(), devices.pointer("a").bundle.digest} <= kept, "bundles of both versions"
        await devices.tried("a", "rolled_back", "slow", modalities=ACC)
        await made.until(lambda: course(made).phase == "failed")
        await made.until(lambda: devices.pointer("a").version == 1)
        assert {name: devices.pointer(name).bundle.digest for name in kinds} == before
        assert all(b"" not in devices.own(name) for name in kinds), "each keeps a pointer of its own"


async def test_without_rollouts_each_export_goes_to_all_as_ever(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1)) as made:
        devices = Devices(made)
        await devices.say("a")
        await deliver(made, "a")
        await made.until(devices.fleet)
        assert devices.fleet()[-1].serial == 0
        assert not (tmp_path / "coordinator" / "rollout.sqlite3").exists()


async def test_a_fleet_that_had_rollouts_goes_back_to_the_newest_with_serials(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), rollout={"mode": "manual"}) as made:
        devices = Devices(made)
        await devices.say("a")
        await deliver(made, "a")
        await made.phase("done")
        assert devices.fleet() == [], "in this mode nothing goes out by itself"
    with RolloutStore(tmp_path / "coordinator") as book:
        known = book.course()
        assert known.newest.version == 1
    async with bench(tmp_path, tiny_task(count=2, min_devices=1)) as made:
        devices = Devices(made)
        await devices.say("a")
        await deliver(made, "a")
        await made.until(devices.fleet)
        assert devices.fleet()[-1].version == 2
        assert devices.fleet()[-1].serial > 0, "devices go by the later decision, and know some"


async def test_what_ran_before_there_were_rollouts_is_what_all_run(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1)) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), rollout={"mode": "manual"}) as made:
        await made.app.announcer.publish_all()
        devices = Devices(made)
        assert (devices.fleet()[-1].version, devices.fleet()[-1].serial > 0) == (1, True)


@pytest.mark.sqlite_only
async def test_a_book_that_is_lost_brings_no_version_to_anybody(tmp_path) -> None:
    manual = {"rollout": {"mode": "manual"}}
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **manual) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
    for file in (tmp_path / "coordinator").glob("rollout.sqlite3*"):
        file.unlink(missing_ok=True)  # a backup that is being written is moved away
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **manual) as made:
        await made.app.announcer.publish_all()
        assert Devices(made).fleet() == [], "the newest export may be one that failed"
    (tmp_path / "coordinator" / "rollout.sqlite3").write_bytes(b"rotten" * 1000)
    with pytest.raises(Misconfigured, match="devices keep what they run"):
        async with bench(tmp_path, tiny_task(count=1, min_devices=1), **manual):
            pass


# ---- the command


def config(folder, mode: str = "manual"):
    """Files of a coordinator in ``folder / "coordinator"``."""
    task = tiny_task()
    (folder / "task.toml").write_text("")
    file = folder / "coordinator.toml"
    lines = [f'fleet = "{FLEET}"', 'state_dir = "coordinator"', 'task = "task.toml"']
    lines += ["[rollout]", f'mode = "{mode}"', "soak_s = 0.0"]
    file.write_text("\n".join(lines))
    return file, task


def run(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def asked(*words: object):
    found = run(*words, "--format", "json")
    assert found.exit_code == 0, found.exception
    return json.loads(found.stdout.splitlines()[-1])  # the daemon of the test writes its log there too


def bundle(of, version: int = 1, content: bytes = b"weights", **changes) -> bytes:
    given = {
        "task": of.name,
        "method": of.method,
        "version": version,
        "labels": of.labels,
        "modalities": (Modality(name="acc", channels=3, rate_hz=10),),
        "inputs": ("acc",),
        "outputs": ("label",),
        "round": version,
        "base": digest(b"base"),
    }
    return pack(BundleManifest.model_validate(given | changes), {"model.onnx": content})


async def test_the_operator_rolls_a_file_out_pauses_resumes_and_aborts(tmp_path) -> None:
    file, task = config(tmp_path)
    rollout = {"mode": "manual", "soak_s": 0.0}
    task = task.model_copy(update={"rounds": tiny_task(count=1, min_devices=1).rounds})
    async with bench(tmp_path, task, rollout=rollout) as made:
        devices = Devices(made)
        for name in ("a", "b"):
            await devices.say(name)
        await deliver(made, "ab")
        await made.phase("done")
        made_by = asked("create", "-c", file, "--canary", "share:1", "--min-agreement", "0.5")
        assert (made_by["version"], made_by["plan"]["trial"]["min_agreement"]) == (1, 0.5)
        await made.until(lambda: devices.own("a") and devices.own("b"))
        for name in "ab":
            await devices.tried(name, "committed")
        await made.until(lambda: course(made).phase == "complete")
        brought = tmp_path / "bad.bundle"
        brought.write_bytes(bundle(task))
        assert asked("create", "-c", file, "--bundle", brought, "--canary", "device:b")["rollout"] == 2
        await made.until(lambda: devices.pointer("b").bundle.digest == digest(brought.read_bytes()))
        assert made.app.deployment.blobs.has(digest(brought.read_bytes())), "devices can fetch it"
        assert devices.pointer("a").version == 1
        assert asked("pause", "-c", file)["phase"] == "paused"
        found = asked("status", "-c", file)
        assert found["rollout"]["phase"] == "paused"
        assert [one["device"] for one in found["rollout"]["devices"]] == ["b"]
        assert found["waits"][0]["then"] == "until lichen rollout resume or abort"
        assert asked("resume", "-c", file)["phase"] == "open"
        await devices.tried("b", "trial")
        await made.until(lambda: course(made).rollout.members["b"].phase == "trial")
        shown = run("status", "-c", file).stdout
        assert re.search(r"b\s.*canary.*online.*trial", shown)
        assert "on trial" in shown
        assert asked("abort", "-c", file)["phase"] == "aborted"
        await made.until(lambda: devices.own("b")[-1] == b"")
        assert devices.pointer("b").bundle.digest == devices.pointer("a").bundle.digest
        _, waited = look(made.app.storage.store, made.app.settings, 0.0)
        assert all(wait.what != "rollout" for wait in waited)
    found = asked("status", "-c", file)
    assert (found["running"], found["rollout"]["phase"], found["past"][0]["phase"]) == (
        False,
        "aborted",
        "complete",
    )
    assert found["stable"]["version"] == 1
    [kept] = (tmp_path / "coordinator" / "rollout").iterdir()
    os.utime(kept, (0, 0))
    asked("create", "-c", file, "--bundle", brought, "--canary", "device:b")
    asked("abort", "-c", file)
    os.utime(kept, (0, 0))
    async with bench(tmp_path, task, rollout=rollout):
        assert not kept.exists(), "what was brought goes when nobody needs it"


REFUSED = [
    (("create",), "newest", 78, 'rollout.mode is "newest"'),
    (("create", "--version", 7), "manual", 65, "version 7 has no bundle here; versions that have: 1"),
    (("create", "--waves", "0.5"), "manual", 78, "waves: shares that grow"),
    (("create", "--waves", "x"), "manual", 2, "write shares that grow"),
    (("create", "--canary", "x"), "manual", 78, "canary: 'x'"),
    (("create", "--bundle", "task.toml"), "manual", 65, "task.toml: bundle: not a readable archive"),
    (("create", "--bundle", "other.bundle"), "manual", 65, "of task 'other'"),
    (("create", "--bundle", "none.bundle"), "manual", 78, "No such file"),
    (("create", "--version", 1, "--bundle", "x"), "manual", 2, "give one of them"),
    (("pause",), "manual", 65, "no rollout is open to pause: there was none yet"),
]


async def test_what_cannot_be_is_refused_in_words(tmp_path) -> None:
    _, task = config(tmp_path)
    (tmp_path / "other.bundle").write_bytes(bundle(task, task="other"))
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), rollout={"mode": "manual"}) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
    for words, mode, status, said in REFUSED:
        file, _ = config(tmp_path, mode)
        given = [str(tmp_path / one) if str(one).endswith((".toml", ".bundle")) else one for one in words[1:]]
        error = io.StringIO()
        with pytest.raises(SystemExit) as left, contextlib.redirect_stderr(error):
            main(["rollout", words[0], "-c", str(file), *map(str, given)])
        assert (left.value.code, said in error.getvalue()) == (status, True), (words, error.getvalue())


def test_two_who_write_the_book_decide_from_the_same_state(tmp_path) -> None:
    from tests.support.coordinator.rollouts import NOW, plan, release  # noqa: PLC0415 - of this test alone

    with RolloutStore(tmp_path) as one, RolloutStore(tmp_path) as two:
        one.play(Begun(mode="manual", release=release(1)), NOW)
        two.play(Create(release=release(2), plan=plan()), NOW)
        assert one.course() == two.course()
        assert one.course().rollout.number == 1
