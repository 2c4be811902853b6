"""A bucket in memory, as several machines share it: durable, and away for a while now and then."""

from collections.abc import Callable, Iterable, Iterator

from coordinator.objects.contract import FoundObject
from lichen_lab.simulation.deterministic.machine.clock import EPOCH
from protocol.errors import Transient


class SimBucket:
    """A ``coordinator.objects.contract.ObjectStore``.

    Args:
        time: true seconds since the start.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._away_until = 0.0

    def fail(self, seconds: float) -> None:
        """Answer nothing for a while."""
        self._away_until = self._time() + seconds

    def clear(self) -> None:
        """End the fault."""
        self._away_until = 0.0

    def look(self, key: str) -> bytes | None:
        """The content, for an observer."""
        found = self._objects.get(key)
        return None if found is None else found[0]

    def _require(self) -> None:
        if self._time() < self._away_until:
            raise Transient("the simulated bucket does not answer")

    @property
    def trouble(self) -> tuple[float, str] | None:
        """See the protocol."""
        return (self.now(), "it does not answer") if self._time() < self._away_until else None

    def put(self, key: str, data: bytes, *, absent: bool = True, durable: bool = True) -> bool:
        """See the protocol."""
        del durable
        self._require()
        if absent and key in self._objects:
            return False
        self._objects[key] = data, self.now()
        return True

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """See the protocol."""
        self._require()
        if key not in self._objects:
            raise KeyError(f"no object {key}")
        data = self._objects[key][0][start:]
        return data if size is None else data[:size]

    def stream(self, key: str) -> Iterator[bytes]:
        """See the protocol."""
        yield self.get(key)

    def head(self, key: str) -> FoundObject | None:
        """See the protocol."""
        self._require()
        found = self._objects.get(key)
        return None if found is None else FoundObject(key, len(found[0]), found[1])

    def below(self, prefix: str) -> Iterator[FoundObject]:
        """See the protocol."""
        self._require()
        start = prefix.rstrip("/") + "/"
        for key, (data, modified) in list(self._objects.items()):
            if key.startswith(start):
                yield FoundObject(key, len(data), modified)

    def remove(self, keys: Iterable[str]) -> None:
        """See the protocol."""
        self._require()
        for key in list(keys):
            self._objects.pop(key, None)

    def remove_below(self, prefix: str) -> None:
        """See the protocol."""
        self.remove([found.key for found in self.below(prefix)])

    def folders(self, prefix: str) -> set[str]:
        """See the protocol."""
        depth = len(prefix.rstrip("/")) + 1
        return {found.key[depth:].split("/")[0] for found in self.below(prefix)}

    def now(self) -> float:
        """See the protocol."""
        return EPOCH + self._time()

    def url(self, key: str, seconds: float) -> str | None:
        """None: there is no service to ask."""
        del key, seconds
        return None

    def check(self) -> None:
        """See the protocol."""
        self._require()
