"""Why a device does not run what it is pointed to: it says so, and who rolls out reads it."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from coordinator.cli.status import look
from coordinator.delivery import rollout_service
from coordinator.fleet.device_registry import Device as Known
from coordinator.rollout import blocked_devices as hindered
from coordinator.rollout.device_record import RolloutDevice
from coordinator.rollout.model import Rollout, RolloutState
from coordinator.rollout.view import waits
from edge_agent.status.model_status import ModelStatus
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from protocol.errors import Refused, Transient
from protocol.messages import MAX_WORDS, State, decode, encode
from protocol.rollout import Hindrance
from runtime.storage.disk import DISK
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.support.coordinator.rollouts import NOW, plan, release
from tests.support.coordinator.trial_device import Device, living
from tests.support.services import until
from tests.unit.coordinator.rollout.test_rollout_staged import QUICK, Devices, config, deliver, run

ESCAPES = "no space\x1b[2J left\u202e [bold]on\nthe disk"
PLAIN = "no space [2J left [bold]on the disk"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)
    monkeypatch.setattr("edge_agent.deployment.service._RETRY_S", 0.02)
    monkeypatch.setattr("edge_agent.deployment.executor._RETRY_S", 0.02)


def agent_of(device, *roles, enabled=True):
    """An agent as what tells of its models sees it."""
    infer = SimpleNamespace(enabled=enabled)
    settings = SimpleNamespace(roles=roles or ("observe",), infer=infer)
    return ModelStatus(settings, None, device.runner, device.deployment)


# ---- on the device


async def test_a_device_with_a_full_disk_says_so_until_there_is_room(tmp_path):
    disk = SimDisk(tmp_path)
    DISK.set(disk)
    async with living(partial(Device, tmp_path / "state", tmp_path / "shelf")) as device:
        agent = agent_of(device)
        assert agent.blocked is None, "nothing was announced: nothing is in the way"
        assert agent.missing == "no model was announced"
        disk.trouble = 28
        bundle = device.point(4, serial=9)
        await until(lambda: agent.blocked)
        said, changes = agent.blocked, device.changes.count
        assert (said.version, said.bundle, said.serial) == (4, bundle, 9)
        assert said.why.endswith(" is full")
        assert changes, "the coordinator hears of it"
        disk.trouble = 0
        await device.runs(4)
        await until(lambda: agent.blocked is None)
        assert agent.missing == ""


async def test_what_cannot_be_fetched_is_said_with_its_version(tmp_path):
    async with living(partial(Device, tmp_path / "state", tmp_path / "shelf")) as device:
        digest = device.point(2)
        (tmp_path / "shelf" / digest).unlink()
        await until(lambda: agent_of(device).blocked)
        assert agent_of(device).blocked.version == 2
        assert device.deployment.report() is None, "it is no verdict on the model"


async def test_words_of_any_length_and_kind_fit_the_message(tmp_path):
    device = Device(tmp_path / "state", tmp_path / "shelf")
    device.deployment.trouble = None, Transient(f"/s/models/{'a' * 64}.part/model.onnx: no space left")
    said = agent_of(device).blocked
    assert said.why == "/s/models/aaaaaaaaaaaa.part/model.onnx: no space left", "a digest hides what matters"
    device.runner.available, device.runner.disabled_reason = False, ESCAPES * 100
    said = agent_of(device).blocked
    assert len(said.why) == MAX_WORDS
    assert said.why.isprintable()
    assert agent_of(device, "train").blocked is None, "it is not here to infer"


async def test_a_device_without_a_model_says_which_of_all_reasons_it_is(tmp_path):
    async with living(partial(Device, tmp_path / "state", tmp_path / "shelf")) as device:
        agent = agent_of(device)
        device.runner.on_load = device.runner.refuses.add
        device.point(3)
        await until(lambda: device.deployment.last_refusal)
        assert agent.missing.startswith("version 3 was refused: ")
        assert "it dies" in agent.missing
        assert agent_of(device, "train").missing == ""
        device.runner.on_load = lambda _: None
        device.point(4)
        await device.runs(4)
        device.runner.answer(0, error="it died")
        await until(lambda: device.running is None)
        assert agent.missing.startswith("version 4 was rolled back: no answer to 1 of 1")
        device.runner.available, device.runner.disabled_reason = False, "infer.enabled is false"
        assert agent.missing == "infer.enabled is false"


def test_old_agents_and_old_coordinators_take_each_other_s_states():
    said = Hindrance(why="no room", version=3, bundle="a" * 64, serial=2)
    state = State(status="online", device="d", hindered=said)
    assert decode(encode(state), State).hindered == said
    assert b"hindered" not in encode(State(status="online", device="d"))
    assert decode(b'{"kind":"state","status":"online","device":"d"}', State).hindered is None
    with pytest.raises(Refused, match=r"hindered\.why"):
        decode(encode(state).replace(b"no room", b"x" * (MAX_WORDS + 1)), State)


# ---- at the coordinator


def known(why="no room", *, status="online", bundle=None, **more):
    said = Hindrance(why=why, version=1, bundle=bundle or release(1).digests[0])
    return Known(State(status=status, device="a", hindered=said, **more), NOW)


def course_of(**members: RolloutDevice) -> RolloutState:
    begun = Rollout(number=1, release=release(1), plan=plan(), began=NOW, since=NOW, members=members)
    return RolloutState(number=1, rollout=begun)


WAITING = RolloutDevice(stage=0, serial=1, seen=True)


@pytest.mark.parametrize(
    ("device", "member", "words"),
    [
        (known(), WAITING, {"a": "no room"}),
        (known(), WAITING.model_copy(update={"phase": "trial"}), {"a": "no room"}),
        (known(), WAITING.model_copy(update={"phase": "committed"}), {}),
        (known(), WAITING.model_copy(update={"barred": True}), {}),
        (known(status="offline"), WAITING, {}),
        (known(bundle="b" * 64), WAITING, {}),
        (Known(State(status="online", device="a"), NOW), WAITING, {}),
        (None, WAITING, {}),
    ],
)
def test_only_what_is_in_the_way_of_the_candidate_is_shown(device, member, words):
    assert hindered.in_rollout(course_of(a=member), {"a": device}.get) == words


def test_of_many_devices_those_with_a_reason_come_first_and_each_is_bounded():
    members = {f"d{i}": WAITING for i in range(9)}
    (wait,) = waits(course_of(**members), {"d7": "/var/" + "x" * 200 + ": no space left"})
    assert wait.why.endswith(": no space left), d0, d1, d2, d3 and 4 more")
    assert len(wait.why.partition("d7 (")[2].partition(")")[0]) == 100


async def test_the_rollout_s_status_and_the_coordinator_s_say_why_a_device_has_no_trial(tmp_path) -> None:
    file, _ = config(tmp_path)
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), rollout=QUICK) as made:
        devices = Devices(made, a={"site": "barn"})
        for name in "ab":
            await devices.say(name)
        await deliver(made, "ab")
        await made.until(lambda: devices.own("a"))
        pointer = devices.pointer("a")
        said = Hindrance(why=ESCAPES, version=1, bundle=pointer.bundle.digest, serial=pointer.serial)
        await devices.say("a", hindered=said)
        await devices.say("b", hindered=said.model_copy(update={"version": 7}))
        await made.until(lambda: made.app.storage.rollouts.course().rollout.members["a"].seen)
        assert f"waits for a ({PLAIN})" in made.app.storage.rollouts.waiting_for(made.app.roster.get)
        _, waited = look(made.app.storage.store, made.app.settings, 0.0)
        (going,) = [wait for wait in waited if wait.what == "rollout"]
        assert f"waits for a ({PLAIN})" in going.why
        (others,) = [wait for wait in waited if wait.what == "models"]
        assert others.why.endswith(f"run their bundle yet: b (version 7: {PLAIN})")
        found = json.loads(run("status", "-c", file, "--format", "json").stdout.splitlines()[-1])
        (device,) = found["rollout"]["devices"]
        assert (device["phase"], device["hindered"], device["why"]) == ("waiting", PLAIN, "")
        shown = run("status", "-c", file).stdout
        assert "not yet on trial" in shown
        assert "\x1b" not in shown
        assert "no space" in shown
        await devices.say("a")
        await made.until(lambda: "waits for a" in made.app.storage.rollouts.waiting_for(made.app.roster.get))
        assert "no space" not in made.app.storage.rollouts.waiting_for(made.app.roster.get)
