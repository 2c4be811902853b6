"""A coordinator's tables with a history, written by its own writers, for tests of pages."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from coordinator.aggregation.device_weight_store import DeviceWeightStore
from coordinator.aggregation.device_weights import WeightReport
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.exporters import FleetExporter
from coordinator.objects.blobs import key_of
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.round_machine.commands import RecordAttempt, Select
from coordinator.round_machine.events import Checkpoint, RoundPhase, RoundState, Rules
from coordinator.rounds.attempt_log import Attempts
from coordinator.selection.selector import SelectedDevices
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.update_journal import Journal
from models.contract import Evaluation
from protocol.errors import Refused
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore
from tests.support.clock import ManualClock
from tests.support.tasks import sensors, small_task, update_header

NOW = 1_790_000_000.0
LABELS = ("rest", "slow <i>walk</i>", "fast")


def digest_of(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()


def settings_in(root: Path, **changes: Any) -> CoordinatorSettings:
    given = {"fleet": "test", "state_dir": root / "coordinator", "task": root / "task.toml"}
    return CoordinatorSettings.model_validate(given | changes)


class History:
    """Writes rounds and versions; use as a context manager. Times go on from :data:`NOW`."""

    def __init__(self, settings: CoordinatorSettings, task: Task | None = None) -> None:
        self.settings = settings
        self.task = task or small_task(sensors(acc=(3, 10)), LABELS)
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.clock = ManualClock(wall=NOW)
        self.store = settings.location.database()
        self.blobs = BlobStore(settings.state_dir / "blobs")
        self.attempts = Attempts(self.store, self.clock)
        self.journal = Journal(self.store, settings.state_dir / "updates")
        self.registry = ModelRegistry(self.store, self.blobs, self.task)
        self.rules = Rules.of(self.task, evaluate=True, export=True)
        self.store.put_meta({"task": self.task.model_dump_json(), "fleet": settings.fleet})
        self.bytes = (0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def wall(self) -> float:
        return self.clock.wall()

    def later(self, seconds: float) -> float:
        self.clock.set_wall(self.clock.wall() + seconds)
        return self.clock.wall()

    def stands(self, phase: RoundPhase, round_: int, version: int, **state: Any) -> None:
        """The round machine's state from now on."""
        given = {"phase": phase, "round": round_, "version": version, "since": self.wall(), **state}
        self.store.append(
            Checkpoint(state=RoundState.model_validate(given), rules=self.rules), self.clock.wall()
        )

    def opens(self, round_: int, devices: Sequence[str], attempt: int = 1, **chosen: Any) -> None:
        why = {name: f"able; windows of {name}" for name in devices}
        given = {"policy": "uniform", "devices": tuple(sorted(devices)), "why": why, "passed": {}, **chosen}
        self.attempts.opened(Select(round=round_, attempt=attempt), SelectedDevices(**given))

    def closes(self, round_: int, outcome: str = "quorum", attempt: int = 1) -> None:
        self.attempts.closed(
            RecordAttempt.model_validate({"round": round_, "attempt": attempt, "outcome": outcome})
        )

    def delivers(self, round_: int, devices: Iterable[str], **header: Any) -> None:
        given = {"metrics": {"loss": 0.25}, "quality": {"acc": 0.9}, **header}
        self.journal.record_all(
            [
                ReceivedUpdate(
                    update_header(self.task, device, round=round_, **given),
                    digest_of(round_, device),
                    1000 + n,
                    blobs=("head",),
                )
                for n, device in enumerate(devices)
            ],
            self.wall(),
        )

    def refuses(self, round_: int, device: str, refused: Refused) -> None:
        self.journal.mark_lost(round_, device, refused, self.wall())

    def makes(self, version: int, devices: Iterable[str] = (), *, evaluated: bool = True) -> None:
        parent = digest_of("version", version - 1) if version else None
        up, down = self.bytes
        self.bytes = up + 5000, down + 20_000
        self.registry.record(
            version,
            digest_of("version", version),
            parent,
            devices,
            wall=self.wall(),
            traffic=self.bytes,
            metrics={},
        )
        if evaluated:
            self.evaluates(version)

    def evaluates(self, version: int, **metrics: float) -> None:
        score = 1 - 1 / (version + 2)
        given = {"accuracy": score, "macro_f1": score - 0.05, "loss": 1 / (version + 1), "windows": 60.0}
        size = len(self.task.labels)
        confusion = [[20 - size + 1 if i == k else 1 for k in range(size)] for i in range(size)]
        by = {"group": {"person <1>": given, "person 2": given}}
        self.registry.record_evaluation(version, Evaluation(given | metrics, confusion, by))

    def weighs(self, round_: int, weights: dict[str, dict[str, float]], warnings: Sequence[str]) -> None:
        DeviceWeightStore(self.store).write(round_, WeightReport(weights, {}, tuple(warnings)))

    async def exports(self, version: int, data: bytes) -> str:
        """Store a bundle; its digest."""
        exporter = FleetExporter(self.store, self.blobs, self.clock)
        return (await exporter.store_bundle(version, data, {"accuracy": 0.5})).digest

    def blob_file(self, digest: str) -> Path:
        return self.settings.state_dir / key_of(digest)

    def plays(self, round_: int, devices: Sequence[str]) -> None:
        """A whole round of ten seconds."""
        self.opens(round_, devices)
        self.later(5)
        self.delivers(round_, devices)
        self.later(1)
        self.closes(round_)
        self.later(3)
        self.makes(round_, devices)
        self.later(1)
