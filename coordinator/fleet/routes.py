"""Routes through a ``routed`` model, and the bundles that serve them. Pure.

Devices with the same route share a bundle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from models.contract import Profile
from protocol.base import Count, Wire
from protocol.frames.frame import digest
from protocol.messages import BlobRef
from runtime.text import first_few

_MAX_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class ServingNeed:
    """What one device is to be served: ``blobs`` are names, sorted."""

    profile: Profile
    blobs: tuple[str, ...]

    @property
    def words(self) -> str:
        """What it reads and predicts."""
        profile = self.profile
        return f"{', '.join(profile.modalities)} -> {', '.join(profile.targets)}"

    @property
    def key(self) -> str:
        """The route as a key in the database."""
        return digest("\n".join(self.blobs).encode())


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """A serving route and its devices.

    Attributes:
        need: the same for all of them.
        devices: sorted.
    """

    need: ServingNeed
    devices: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of its bundle."""
        return self.need.key

    def __str__(self) -> str:
        return f"{self.need.words}: {counted(self.devices)}"

    def as_json(self) -> dict[str, Any]:
        """The route as text, for the status command."""
        return {"route": self.need.words, "devices": len(self.devices), "words": str(self)}


class ReleaseBundle(Wire):
    """One bundle of a release; for a routed method the one of a route."""

    version: Count
    bundle: BlobRef
    metrics: dict[str, float] = Field(default_factory=dict)
    blobs: tuple[str, ...] = ()
    """The route; None if all devices run the same bundle."""
    modalities: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    devices: Count = 0
    base: str = ""

    @property
    def need(self) -> ServingNeed:
        """The route that it was made for."""
        return ServingNeed(Profile(self.modalities, self.targets), self.blobs)


def counted(devices: tuple[str, ...]) -> str:
    """The first devices, as text."""
    return f"{len(devices)} device{'' if len(devices) == 1 else 's'} ({first_few(devices, _MAX_NAMES)})"


def group_by_route(needs: Mapping[str, ServingNeed]) -> list[RouteGroup]:
    """The distinct routes: most devices first, then by their blobs."""
    found: dict[tuple[str, ...], list[str]] = {}
    for device in sorted(needs):
        found.setdefault(needs[device].blobs, []).append(device)
    made = [RouteGroup(needs[devices[0]], tuple(devices)) for devices in found.values()]
    return sorted(made, key=lambda one: (-len(one.devices), one.need.blobs))


def best_bundle(need: ServingNeed, there: Iterable[ReleaseBundle]) -> ReleaseBundle | None:
    """The bundle for a device: the newest that reads and predicts the same, preferably of its own route."""
    wanted = need.profile.modalities, need.profile.targets
    fit = [one for one in there if (one.modalities, one.targets) == wanted]
    return max(
        fit,
        key=lambda one: (one.version, one.blobs == need.blobs, one.devices, one.bundle.digest),
        default=None,
    )
