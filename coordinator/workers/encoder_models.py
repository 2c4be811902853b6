"""Encoder models: what a device without torch needs to compute its prototypes.

They depend on the task alone (their weights travel as the base's blobs, ADR 13), so the export process makes
them once, when the first device of a role that needs them appears. They are stored as blobs, named in the
table ``meta``; both are checked at intervals, and a missing or damaged model is made again.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Final

import structlog
from pydantic import Field, ValidationError

from coordinator.errors import in_words
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements, requirements_of
from coordinator.objects.blobs import BlobStorage
from coordinator.storage.database import Database
from coordinator.workers.jobs import Jobs
from models.backbones.views import backbones
from protocol.base import Digest, Wire
from protocol.errors import LichenError, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import BlobRef
from protocol.tasks.task import ModalityName, Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.pacing import backoff_s
from runtime.waits import Wait

log = structlog.get_logger(__name__)

META: Final = "graphs"
"""The key of the table ``meta``."""
LOOK_S: Final = 60.0
_FIRST_PAUSE_S: Final = 5.0
_LAST_PAUSE_S: Final = 300.0
NOT_YET: Final = "the export process starts soon"
MAKING: Final = "the export process makes them"
AGAIN: Final = "; it is tried again now"


class EncoderModelRecord(Wire):
    """The stored encoder models.

    Attributes:
        made_for: digest of what they depend on; others are of no use.
        graphs: by modality, all or none.
        why: why there are none, in words.
        since: when they began to be wanted, unix seconds.
        until: when it is tried again, or given up.
    """

    made_for: Digest
    graphs: Annotated[dict[ModalityName, BlobRef], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies defaults
    why: str = NOT_YET
    since: float | None = None
    until: float | None = None


def made_for(task: Task) -> str:
    """The digest of all that the encoder models depend on: the networks, the windows, and who makes them."""
    parts = task.model_dump_json(include={"modalities", "window", "network"})
    return digest(f"{metadata.version('lichen')} {parts}".encode())


def kept(store: Database, task: Task) -> EncoderModelRecord:
    """The record on disk; empty if it is of another task or release, or damaged."""
    nothing = EncoderModelRecord(made_for=made_for(task))
    try:
        found = EncoderModelRecord.model_validate_json(store.get_meta(META) or "")
    except ValidationError:
        return nothing
    whole = not found.graphs or set(found.graphs) == set(task.modality_names)
    return found if found.made_for == nothing.made_for and whole else nothing


def terms_kept(store: Database, task: Task) -> Requirements:
    """The requirements, as the status command sees them."""
    found = kept(store, task)
    return requirements_of(task, "" if found.graphs else found.why)


def wait_for(found: EncoderModelRecord, roster: DeviceRegistry, terms: Requirements) -> Wait | None:
    """The wait for the encoder models, if a device needs them and they are missing."""
    if found.graphs or not terms.wants_encoder_models or not roster.prototypers:
        return None
    names = ", ".join(sorted(roster.prototypers)[:4])
    words = f"{found.why}; until then devices of role prototype take no part ({names})"
    return Wait(
        "encoder models", words, found.since, found.until, "they are ready, or the export is tried again"
    )


@dataclass(eq=False, repr=False)
class EncoderModels:
    """One service. It waits until the roster has a device that needs encoder models.

    It sets ``changes`` when devices of role prototype can take part, or cannot any more.
    """

    task: Task
    store: Database
    blobs: BlobStorage
    jobs: Jobs
    roster: DeviceRegistry
    clock: Clock
    worker_s: float
    changes: Signal

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        """A lock: no blob is deleted between its writing and its entry in the table."""
        self._kept = kept(self.store, self.task)
        self._sound = False
        self._failed = ""
        """Why the last attempt failed."""
        self._terms = requirements_of(self.task, NOT_YET)

    def terms(self) -> Requirements:
        """The requirements of a device for a round, as of now."""
        return self._terms

    def offered(self) -> Mapping[str, BlobRef]:
        """The encoder models of all modalities, which an offer names; empty while they are missing."""
        return self._kept.graphs if self._sound else {}

    @contextmanager
    def held(self) -> Iterator[tuple[str, ...]]:
        """Digests that must be retained, with those of the task's backbones; none is added inside it."""
        needed = [one.sha256 for one in backbones(self.task).values() if one.sha256 is not None]
        with self._lock:
            yield (*(ref.digest for ref in self._kept.graphs.values()), *needed)

    async def run(self) -> None:
        """Make the encoder models when a device needs them, and check them; ends if the method needs none."""
        if not self._terms.wants_encoder_models:
            return
        await self.roster.wait_for_prototypers()
        failures = 0
        while True:
            if await self._are_sound():
                failures = 0
                await self.clock.sleep(LOOK_S)
                continue
            try:
                await self._make()
            except (LichenError, OSError) as error:
                pause, failures = backoff_s(_FIRST_PAUSE_S, _LAST_PAUSE_S, failures), failures + 1
                self._failed = f"the export failed: {in_words(error)}"
                log.warning("feature_graphs", why=self._failed, again_in_s=pause)
                await self._say(self._failed, self.clock.wall() + pause)
                await self.clock.sleep(pause)

    async def _are_sound(self) -> bool:
        """Whether they are stored, and their record; a missing one counts as gone from now on."""
        sound = bool(self._kept.graphs) and await asyncio.to_thread(self._look)
        if sound != self._sound:
            self._sound = sound
            self._terms = requirements_of(self.task, "" if sound else NOT_YET)
            self.changes.set()
        return sound

    def _look(self) -> bool:
        for name, ref in self._kept.graphs.items():
            try:
                self.blobs.get(ref.digest)
            except Transient as error:  # no answer: they are where they were
                log.warning("feature_graphs_not_checked", why=str(error))
                return self._sound
            except (KeyError, Refused, OSError) as error:
                log.warning("feature_graph_gone", modality=name, why=str(error))
                return False
        return True

    async def _make(self) -> None:
        now = f"{self._failed}{AGAIN}" if self._failed else MAKING
        await self._say(now, self.clock.wall() + self.worker_s)
        made = await self.jobs.features()
        await asyncio.to_thread(self._keep, made)
        if not await self._are_sound():
            raise Transient("they were written but cannot be read")
        self._failed = ""
        sizes = {name: ref.size for name, ref in self._kept.graphs.items()}
        log.info("feature_graphs", made=sizes)

    def _keep(self, made: Mapping[str, bytes]) -> None:
        with self._lock:
            refs = {name: self.blobs.put(made[name]) for name in self.task.modality_names}
            found = EncoderModelRecord(made_for=made_for(self.task), graphs=refs, why="")
            self.store.put_meta({META: found.model_dump_json()})
            self._kept = found

    async def _say(self, why: str, until: float) -> None:
        """Record why there are none, on disk, too, for ``status``."""
        since = self.clock.wall() if self._kept.since is None else self._kept.since
        found = EncoderModelRecord(made_for=made_for(self.task), why=why, since=since, until=until)
        self._kept, self._terms = found, requirements_of(self.task, why)
        self.changes.set()
        with contextlib.suppress(LichenError):  # a full disk: the reason stays in memory
            await asyncio.to_thread(self.store.put_meta, {META: found.model_dump_json()})
