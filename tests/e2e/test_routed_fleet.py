"""Devices of a routed method, over a real broker: each moves exactly the blobs of its own route.

Real agents, workers, router and server half; the coordinator is scripted, and counts what passes.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings, LearnSettings, WindowSettings
from edge_agent.opening import open_agent
from models.contract import Blobs, Profile, Update, blob_of
from models.methods.disentafl.routing.blob_names import domains_of, route
from models.registry import method
from protocol.frames.frame import decode_frame
from protocol.frames.headers import Manifest, UpdateHeader
from protocol.messages import BlobRef, State
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Target, Task, Window
from runtime.clock import SystemClock
from runtime.settings.load import MqttSettings
from tests.e2e.test_agent_e2e import coordinator
from tests.support.agent.fake_coordinator import FLEET, FakeCoordinator
from tests.support.agent.parts import alive
from tests.support.agent.source import HandSource
from tests.support.network.brokers import broker

__all__ = ["broker"]
LIMIT_S = 180.0
TASK = Task(
    name="parts",
    method="disentafl",
    labels=("slow", "fast"),
    modalities=(Modality(name="acc", channels=3, rate_hz=20), Modality(name="gyr", channels=2, rate_hz=20)),
    targets=(Target(name="side", labels=("left", "right")),),
    window=Window(length_s=1.6, stride_s=0.8),
    rounds=Rounds(min_windows=8),
    config={"width": 16, "latent": 4, "bottleneck": 2, "tokens": 4, "heads": 2, "hidden": 8, "batch": 32},
)
SPEC = method(TASK.method)
CHANNELS = {"acc": 3, "gyr": 2}
ACC, BOTH = Profile(("acc",)), Profile(("acc", "gyr"), ("label", "side"))


class Device:
    """An agent in this process, and the hand that holds its sensors."""

    def __init__(self, folder: Path, name: str, fake: FakeCoordinator) -> None:
        self.name = name
        self.source = HandSource(CHANNELS)
        self.pulled: set[str] = set()
        """Digests, in all rounds so far."""
        self._fake = fake
        settings = AgentSettings(
            fleet=FLEET,
            device=name,
            state_dir=folder / name,
            cache_dir=folder / name / "cache",
            source=({},),
            state_every_s=0.1,
            mqtt=MqttSettings(host=fake.host, port=fake.port),
            windows=WindowSettings(lateness_s=0.2),
            learn=LearnSettings(timeout_s=LIMIT_S),
        )
        for path in (settings.state_dir, settings.cache_dir):
            path.mkdir()
        self.agent = open_agent(settings, [self.source], SystemClock())

    @asynccontextmanager
    async def running(self):
        async with alive(self.agent):
            yield self

    @property
    def says(self) -> State:
        return next(state for state in reversed(self._fake.states) if state.device == self.name)

    async def shows(self, profile: Profile) -> None:
        """Wait until its state says that it reads and learns this, and has enough windows."""

        def true() -> bool:
            if not any(state.device == self.name for state in self._fake.states):
                return False
            learns = ("label",) if self.says.targets is None else self.says.targets
            found = Profile(tuple(self.says.modalities), learns)
            return found == profile and self.says.windows >= TASK.rounds.min_windows

        await self._fake.until(true, LIMIT_S)

    async def learns(self, round_: int) -> tuple[Update, set[str]]:
        """In a round that is offered: what it sends, and the digests that it pulled for that round."""
        fake = self._fake
        await fake.until(lambda: self._update(round_) is not None, LIMIT_S)
        frame = self._update(round_)
        assert frame is not None
        await fake.receipt(self.name, TASK, round_, frame)
        header, tensors = decode_frame(frame, UpdateHeader)
        update = Update(header, dict(tensors))
        pulled = {digest for digest, _ in fake.pulled[self.name]}
        self.pulled |= pulled
        assert sum(fake.pulled[self.name].values()) == sum(len(fake.blobs[digest]) for digest in pulled)
        return update, pulled

    def _update(self, round_: int) -> bytes | None:
        for frame in self._fake.updates:
            header, _ = decode_frame(frame, UpdateHeader)
            if (header.device, header.round) == (self.name, round_):
                return frame
        return None


def manifest_of(fake: FakeCoordinator, base: BlobRef) -> dict[str, str]:
    """Digests by name of blob."""
    manifest = Manifest.model_validate_json(fake.blobs[base.digest])
    return {name: ref.digest for name, ref in manifest.blobs.items()}


def names(fake: FakeCoordinator, base: BlobRef, pulled: set[str]) -> set[str]:
    """What was pulled, by name; the manifest as "manifest"."""
    by_digest = {digest: name for name, digest in manifest_of(fake, base).items()} | {base.digest: "manifest"}
    return {by_digest[digest] for digest in pulled}


def folded(state: Blobs, updates: list[Update], round_: int) -> Blobs:
    """What the real coordinator's half makes of them; it refuses what is not exactly on the route."""
    server = SPEC.server()
    fold = server.open(TASK, round_, state)
    for update in updates:
        server.check(TASK, state, update)
        fold.fold(update)
    return fold.close()


def on_route(names_: set[str], profile: Profile) -> set[str]:
    """The device's route through the one domain that these blobs show."""
    (domain,) = domains_of(names_)
    return set(route(TASK, profile, (domain,)))


@pytest.mark.long
async def test_a_device_moves_its_route_and_nothing_else_and_a_new_sensor_changes_it(tmp_path, broker):
    state = SPEC.client().initial(TASK, 0)
    async with coordinator(broker) as fake, AsyncExitStack() as stack:
        await fake.announce(TASK)
        devices = [Device(tmp_path, name, fake) for name in ("plain", "growing")]
        plain, growing = [await stack.enter_async_context(device.running()) for device in devices]
        for device in devices:
            device.source.give(TASK, 40.0, "acc", "label")
        for device in devices:
            await device.shows(ACC)
        base = fake.version(TASK, state, 0)
        updates = []
        await fake.offer([device.name for device in devices], TASK, 1, base)
        for update, pulled in await asyncio.gather(*(device.learns(1) for device in devices)):
            got = names(fake, base, pulled)
            assert got == on_route(got, ACC) | {"manifest"}, "its route and nothing else"
            assert {blob_of(name) for name in update.tensors} == got - {"manifest"}
            assert update.header.extra["modalities"] == ["acc"]
            assert len(pulled) < len(state) / 2
            updates.append(update)

        after = folded(state, updates, 1)
        before, now = manifest_of(fake, base), manifest_of(fake, fake.version(TASK, after, 1))
        moved = {name for name in now if now[name] != before[name]}
        assert moved == {blob_of(name) for update in updates for name in update.tensors}, "others: same bytes"
        still = {"base/acc", "decoder/label"}  # as if nobody had sent them
        state = {name: (state if name in still else after)[name] for name in state}
        base = fake.version(TASK, state, 1)
        now = manifest_of(fake, base)
        growing.source.give(TASK, 40.0, "acc gyr", "label", "side")
        plain.source.give(TASK, 40.0, "acc", "label")
        await growing.shows(BOTH)
        updates = []
        for device, profile in ((plain, ACC), (growing, BOTH)):
            here = set(device.pulled)
            fake.pulled.clear()
            await fake.offer(device.name, TASK, 2, base)
            update, pulled = await device.learns(2)
            sent = {blob_of(name) for name in update.tensors}
            assert sent == on_route(sent, profile)
            assert pulled == {base.digest, *(now[name] for name in sent)} - here
            assert not still & names(fake, base, pulled), "what it has stays where it is"
            assert update.header.extra["modalities"] == list(profile.modalities)
            assert update.header.extra["targets"] == list(profile.targets)
            assert device.agent.learner.trained == 2, "the same process"
            assert set(device.agent.status()["route"]) == sent
            updates.append(update)
        folded(state, updates, 2)


@pytest.mark.parametrize("wrong", ["names", "shape"])
async def test_a_gate_that_does_not_fit_is_said_and_the_agent_goes_on(tmp_path, broker, wrong):
    """What the router is fed comes from the wire."""
    state = SPEC.client().initial(TASK, 0)
    gate = state["gate/acc"]
    odd = (
        {"gate/acc/other": next(iter(gate.values()))}
        if wrong == "names"
        else {name: tensor[:0] for name, tensor in gate.items()}
    )
    async with coordinator(broker) as fake:
        await fake.announce(TASK)
        device = Device(tmp_path, "d", fake)
        async with device.running():
            device.source.give(TASK, 40.0, "acc", "label")
            await device.shows(ACC)
            base = fake.version(TASK, state | {"gate/acc": odd}, 0)
            await fake.offer("d", TASK, 1, base)
            learner = device.agent.learner
            await fake.until(lambda: learner.failures, LIMIT_S)
            assert "the router of method 'disentafl' cannot use gate/acc" in learner.why
            pulled = {digest for digest, _ in fake.pulled["d"]}
            assert names(fake, base, pulled) == {"manifest", "gate/acc"}, "no other blob was asked for"
