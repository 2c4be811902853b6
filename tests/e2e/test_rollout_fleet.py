"""Versions in stages over a real broker: the coordinator is killed in every stage, and goes on."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import pytest

from protocol import messages
from protocol.messages import ModalityState, ModelPointer, State
from protocol.rollout import TrialReport
from protocol.topics import Kind, parse
from tests.faults.test_coordinator_kill import Child
from tests.support.coordinator.fake import FLEET, FakeDevice, tiny_task
from tests.support.coordinator.rollouts import rollout
from tests.support.network.brokers import broker  # noqa: F401 - a fixture

BAD = "rolled_back"


class Trier(FakeDevice):
    """Goes by the later decision, as an agent does, and says what became of it.

    Args:
        verdict: what it says in the end of a version; a version that it has no verdict on stays on trial.
    """

    def __init__(self, port: int, name: str, verdict: dict[int, str], **labels: str) -> None:
        super().__init__(port, name)
        self.verdict = verdict
        self.labels = labels
        self.by_topic: dict[Kind, ModelPointer] = {}
        self.ran: list[int] = []
        """Versions that were on trial here, in order."""
        self.report: TrialReport | None = None
        self.kept: ModelPointer | None = None

    async def _listen(self) -> None:
        async for message in self.link.messages():
            route = parse(message.topic)
            if route.kind in (Kind.MODEL, Kind.FLEET_MODEL):
                self.by_topic.pop(route.kind, None)
                if message.payload:
                    self.by_topic[route.kind] = messages.decode(message.payload, ModelPointer)
                await self.try_it()
            elif message.payload and route.kind is not Kind.DOWN_BLOB:
                await self._take(messages.decode(message.payload, messages.Wire))
            message.ack()
            async with self.heard:
                self.heard.notify_all()

    async def try_it(self) -> None:
        if not self.by_topic:
            return
        pointer = max(self.by_topic.values(), key=lambda one: one.serial)
        digest, kept, told = pointer.bundle.digest, self.kept, self.report
        if kept is not None and kept.bundle.digest == digest:
            self.say(pointer, "committed")
        elif told is None or (told.bundle, told.serial) != (digest, pointer.serial) or told.phase == "trial":
            if told is None or told.bundle != digest:
                self.ran.append(pointer.version)
            verdict = self.verdict.get(pointer.version, "trial")
            self.say(pointer, verdict)
            if verdict == "committed":
                self.kept = pointer
        await self.hello()

    def say(self, pointer: ModelPointer, phase: str) -> None:
        self.report = TrialReport(
            version=pointer.version,
            bundle=pointer.bundle.digest,
            serial=pointer.serial,
            phase=phase,
            why="agreement 0.1, at least 0.5" if phase == BAD else "",
            measures={"windows": 20.0},
        )

    async def hello(self, status: str = "online") -> None:
        state = State(
            status=status,
            device=self.name,
            roles=("observe", "train"),
            modalities={"acc": ModalityState(windows=(2, 1))},
            windows=3,
            model=None if self.kept is None else self.kept.bundle.digest,
            trial=self.report,
            labels=self.labels or None,
        )
        with contextlib.suppress(messages.Refused):
            await self.publish(Kind.STATE, messages.encode(state), retain=True)


async def until(what, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110 - of several devices
            await asyncio.sleep(0.02)


@pytest.mark.long
async def test_a_coordinator_that_is_killed_in_every_stage_carries_its_rollouts_on(tmp_path, broker) -> None:  # noqa: F811
    stages = {"mode": "staged", "canary": "label:site=barn", "waves": [0.6, 1.0], "soak_s": 0.0}
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "coordinator.toml").write_text(
        f'fleet = "{FLEET}"\nstate_dir = "coordinator"\ntask = "task.toml"\n[rollout]\nmode = "staged"\n'
    )
    task = tiny_task(count=2, min_devices=3)
    child = Child(
        tmp_path, broker.port, task, rollout=stages, export={"every_rounds": 1}, exit_when_done=False
    )
    good = {1: "committed"}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(child.kill)
        fleet = [
            await stack.enter_async_context(Trier(broker.port, name, {}, **labels))
            for name, labels in (("d1", {"site": "barn"}), ("d2", {}), ("d3", {}))
        ]
        canary, *others = fleet
        await child.start()

        async def again() -> None:
            await child.kill()
            await child.start()

        # Version 1, the first of all: killed while the canary, and while the wave is on trial.
        await until(lambda: canary.ran == [1])
        await again()
        canary.verdict = dict(good)
        await canary.try_it()
        await until(lambda: sum(one.ran == [1] for one in others) == 1)
        await again()
        for one in fleet:
            one.verdict = dict(good)
            await one.try_it()
        await until(lambda: all(Kind.FLEET_MODEL in one.by_topic for one in fleet))
        await until(lambda: all(Kind.MODEL not in one.by_topic for one in fleet))
        assert [one.kept.version for one in fleet] == [1, 1, 1]
        # Version 2 is bad: killed while the canary tries it, and when it says that it has rolled back.
        await until(lambda: canary.ran == [1, 2])
        await again()
        canary.verdict = {**good, 2: BAD}
        await canary.try_it()
        await until(lambda: canary.report.version == 1)
        await again()
        await until(lambda: Kind.MODEL not in canary.by_topic)
        found = await rollout(tmp_path, "status")
        assert found["rollout"]["phase"] == "failed"
        assert found["rollout"]["why"].endswith("d1 rolled back: agreement 0.1, at least 0.5")
        assert [one["phase"] for one in found["past"]] == ["complete"]
        assert [one["version"] for one in found["failed"]] == [2]
        assert [one.ran for one in others] == [[1], [1]], "they never saw it"
        # While nobody runs, the operator begins it once more, for one device; and ends it while it is paused.
        await child.kill()
        await rollout(tmp_path, "create", "--version", "2", "--canary", "device:d2")
        await child.start()
        await until(lambda: others[0].ran == [1, 2])
        assert (await rollout(tmp_path, "pause"))["phase"] == "paused"
        await again()
        assert (await rollout(tmp_path, "abort"))["phase"] == "aborted"
        await until(lambda: Kind.MODEL not in others[0].by_topic)
        assert others[0].by_topic[Kind.FLEET_MODEL].version == 1
        assert others[1].ran == [1]
        async with Trier(broker.port, "late", dict(good)) as late:
            await until(lambda: late.kept is not None and late.kept.version == 1)
