"""The downloads of simulated devices: the blobs of their routes that they do not have yet."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.versions.published_blobs import blob_frame
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Tensors
from protocol.frames.frame import digest
from protocol.frames.tensors import Codec


@dataclass
class Downloads:
    """Counts payload bytes. A device keeps what it fetched, as an agent does while there is room.

    Attributes:
        kept: by device, digest of the newest blob of each name that it fetched.
        codecs: of tensors on the wire, by the last part of their names (``MethodSpec.codecs``); others are
            float32.
    """

    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    _known: dict[str, tuple[Tensors, str, int]] = field(default_factory=dict)

    def publish(self, exact: Blobs) -> Blobs:
        """The version as it is, without an optimizer's moments."""
        return model_of(exact)

    def of(self, device: str, route: Iterable[str], state: Blobs) -> int:
        """Bytes of the blobs of a state that a device lacks for its route; it has them from now on."""
        kept, total = self.kept.setdefault(device, {}), 0
        for name in route:
            mark, size = self._blob(name, state[name])
            total += size if kept.get(name) != mark else 0
            kept[name] = mark
        return total

    def _blob(self, name: str, tensors: Tensors) -> tuple[str, int]:
        """Digest and size on the wire; computed once for each version of the blob."""
        known = self._known.get(name)
        if known is None or known[0] is not tensors:
            frame = blob_frame(name, tensors, self.codecs)
            known = self._known[name] = (tensors, digest(frame), len(frame))
        return known[1], known[2]
