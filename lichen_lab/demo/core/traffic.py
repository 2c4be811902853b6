"""Counts each device's downloads and uploads at the broker, blob by blob. Pure.

Counts are payload bytes as published, repetitions included. Blob names come from the manifests that the
devices fetch.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from protocol import messages
from protocol.errors import Refused
from protocol.frames.headers import Manifest
from protocol.messages import ModelPointer, Offer
from protocol.topics import Kind, Route, broadcast_topic, parse

MANIFEST: Final = "manifest"
BUNDLE: Final = "bundle"
OTHER: Final = "other"


@dataclass
class TrafficTurn:
    """One device in one round: bytes down by blob name, bytes up."""

    down: dict[str, int] = field(default_factory=dict)
    up: int = 0

    @property
    def blobs(self) -> tuple[str, ...]:
        """Names of the fetched parts of the model, sorted."""
        return tuple(sorted(set(self.down) - {MANIFEST, BUNDLE, OTHER}))

    @property
    def model_bytes(self) -> int:
        """Bytes down for training: without bundles."""
        return sum(size for name, size in self.down.items() if name != BUNDLE)


class TrafficCounter:
    """Counts bytes by digest; :meth:`turns` gives them by blob name."""

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._round = 0
        """Device -> round of its last offer; its traffic belongs to that round."""
        self._down: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._up: dict[tuple[str, int], int] = defaultdict(int)
        self._bases: set[str] = set()
        self._bundles: set[str] = set()
        self._names: dict[str, str] = {}
        self.pointers: dict[str, ModelPointer] = {}
        """Device -> its newest own bundle pointer."""
        self.sizes: dict[str, int] = {}
        """Blob name -> its bytes in the newest manifest: the whole model."""
        self.missed = 0
        """Messages dropped for lack of room, and so not counted."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""
        device = f"lichen/v1/{self._fleet}/d/+"
        single = (Kind.MODEL, Kind.UPDATE)
        return (
            (broadcast_topic(self._fleet, Kind.OFFER), 0),
            *((f"{device}/{kind.value}", 0) for kind in single),
            *((f"{device}/{kind.value}/+", 0) for kind in (Kind.DOWN_BLOB, Kind.UP_BLOB)),
        )

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message; ignore topics that are not lichen's."""
        try:
            route = parse(topic)
            if route.device is not None:
                self._take(route, route.device, payload)
            elif route.kind is Kind.FLEET_MODEL:
                self._bundles.add(messages.decode(payload, ModelPointer).bundle.digest)
            elif route.kind is Kind.OFFER and payload:
                offer = messages.decode(payload, Offer)
                self._round = offer.round
                self._bases.add(offer.base)
        except Refused:
            return

    def _take(self, route: Route, device: str, payload: bytes) -> None:
        at = (device, self._round)
        match route.kind:
            case Kind.MODEL:
                self.pointers[device] = pointer = messages.decode(payload, ModelPointer)
                self._bundles.add(pointer.bundle.digest)
            case Kind.UPDATE | Kind.UP_BLOB:
                self._up[at] += len(payload)
            case Kind.DOWN_BLOB if route.digest is not None:
                self._down[at][route.digest] += len(payload)
                self._learn(route.digest, payload)
            case _:
                return

    def _learn(self, digest: str, payload: bytes) -> None:
        """Take blob names from a manifest that came in one chunk."""
        if digest not in self._bases:
            return
        try:
            manifest = Manifest.model_validate_json(payload)
        except ValidationError:
            return
        self._names |= {ref.digest: name for name, ref in manifest.blobs.items()}
        self.sizes = {name: ref.size for name, ref in manifest.blobs.items()}

    def _name(self, digest: str) -> str:
        if digest in self._bases:
            return MANIFEST
        return BUNDLE if digest in self._bundles else self._names.get(digest, OTHER)

    def turns(self) -> dict[str, dict[int, TrafficTurn]]:
        """Device -> round -> its traffic. Round 0: before its first offer."""
        found: dict[str, dict[int, TrafficTurn]] = defaultdict(lambda: defaultdict(TrafficTurn))
        for (device, number), digests in self._down.items():
            down = found[device][number].down
            for digest, size in digests.items():
                name = self._name(digest)
                down[name] = down.get(name, 0) + size
        for (device, number), size in self._up.items():
            found[device][number].up += size
        return {device: dict(sorted(turns.items())) for device, turns in found.items()}
