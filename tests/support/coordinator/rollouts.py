"""Releases, plans and reports: for tests of the coordinator's rollout."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from coordinator.cli.rollout import app
from coordinator.config.rollout import Plan
from coordinator.fleet.routes import ReleaseBundle
from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import Release, RolloutState, RolloutTick
from coordinator.rollout.stage_devices import Fact
from coordinator.rollout.table import apply
from coordinator.trust.repository import BundleTarget
from coordinator.trust.signer import Signer
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer
from protocol.rollout import TrialReport

NOW = 1_800_000_000.0


def release(version: int, content: bytes = b"") -> Release:
    data = content or f"bundle {version}".encode()
    ref = BlobRef(digest=digest(data), size=len(data))
    return Release(version=version, pieces=(ReleaseBundle(version=version, bundle=ref),))


def plan(**changes: object) -> Plan:
    given = {"canary": "device:a", "waves": (1.0,), "soak_s": 10.0, "deadline_s": 100.0}
    return Plan.model_validate(given | changes)


def report(one: Release, serial: int, phase: str, why: str = "", **measures: float) -> TrialReport:
    return TrialReport(
        version=one.version,
        bundle=one.digests[0],
        serial=serial,
        phase=phase,
        why=why,
        measures=measures,
    )


class Fleet:
    """Simulated devices for the state machine: they send scripted reports."""

    def __init__(self, *names: str, labels: dict[str, dict[str, str]] | None = None) -> None:
        self.course = RolloutState()
        self.now = NOW
        self.names = list(names)
        self.labels = labels or {}
        self.said: dict[str, DeviceReport] = {name: DeviceReport(online=True) for name in names}
        self.commands: list[object] = []

    def play(self, event) -> None:
        self.course, commands = apply(self.course, event, self.now)
        self.commands += commands

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        fleet = {
            name: Fact(online=self.said[name].online, labels=self.labels.get(name, {})) for name in self.names
        }
        self.play(RolloutTick(heard=self.said, fleet=fleet))

    def says(self, name: str, phase: str, why: str = "", **measures: float) -> None:
        rollout = self.course.rollout
        member = rollout.members[name]
        told = report(rollout.release, member.serial, phase, why, **measures)
        self.said[name] = DeviceReport(online=True, model=told.bundle, trial=told)

    def phase(self) -> str:
        return self.course.phase.value

    def members(self, stage: int) -> list[str]:
        return sorted(n for n, one in self.course.rollout.members.items() if one.stage == stage)


async def rollout(folder: Path, *words: str) -> dict[str, Any]:
    """``lichen rollout WORDS``."""
    given = [*words, "-c", str(folder / "coordinator.toml"), "--format", "json"]
    done = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert done.exit_code == 0, done.exception
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


class NoSigner:
    """The signer of a fleet without a root: signs nothing."""

    fleet = ""

    def signer(self) -> Signer | None:
        """None."""
        return None

    def vouched(
        self, pointer: ModelPointer, bundles: Sequence[BundleTarget], device: str | None = None
    ) -> ModelPointer:
        """The pointer, unchanged."""
        del bundles, device
        return pointer

    def due(self) -> bool:
        """False."""
        return False

    def kept(self) -> tuple[str, ...]:
        """Empty."""
        return ()

    def held(self) -> AbstractContextManager[tuple[str, ...]]:
        """Empty."""
        return nullcontext(())
