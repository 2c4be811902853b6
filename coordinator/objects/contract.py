"""What the coordinator needs of a store of objects."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import Misconfigured, Transient


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object without its content.

    Attributes:
        key: its name in the store.
        size: bytes.
        modified: Unix seconds, by the clock of the store.
    """

    key: str
    size: int
    modified: float


class StoreUnusable(Transient, Misconfigured):
    """The store refuses this coordinator: no bucket, wrong credentials. At a start it ends with 78.

    A running daemon goes on, as with a full disk: the operator may repair the store meanwhile.
    """


class ObjectStore(Protocol):
    """Objects by key. Synchronous and thread-safe; call it in a thread.

    A key is a relative path of letters, digits, ``-``, ``_`` and ``.`` between slashes. Every method raises
    ``Transient`` if the store does not answer, is full or fails, and ``StoreUnusable`` if it refuses us: then
    nothing is stored.
    """

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Since when requests fail (Unix seconds), and why; None: the last one succeeded."""

    def put(self, key: str, data: bytes, *, absent: bool = True, durable: bool = True) -> bool:
        """Store: on return every process that shares the store sees the object.

        Args:
            key: its name.
            data: its content.
            absent: leave an object that is there as it is.
            durable: False: it may be lost with this machine's power (it is checked when it is read).

        Returns:
            Whether it was written; False: ``absent``, and it was there.
        """

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """The content, or ``size`` bytes of it from ``start`` (fewer at its end).

        Raises:
            KeyError: there is no such object.
        """

    def stream(self, key: str) -> Iterator[bytes]:
        """The content in parts of bounded size.

        Raises:
            KeyError: there is no such object.
        """

    def head(self, key: str) -> FoundObject | None:
        """An object without its content; None: there is none."""

    def below(self, prefix: str) -> Iterator[FoundObject]:
        """All objects below a prefix (whole path segments), in no order; holds one page at a time."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, if they are there."""

    def remove_below(self, prefix: str) -> None:
        """Remove all objects below a prefix."""

    def folders(self, prefix: str) -> set[str]:
        """The next path segments of the objects below a prefix."""

    def now(self) -> float:
        """The clock of the store in Unix seconds: ages of objects are differences to it."""

    def url(self, key: str, seconds: float) -> str | None:
        """A URL with which anyone may read an object for so long; None: the store has none."""

    def check(self) -> None:
        """Try whether objects can be written, read, listed and removed. Called at the start.

        Raises:
            Misconfigured: no bucket, or not permitted; the message names the setting.
            Transient: it does not answer now.
        """
