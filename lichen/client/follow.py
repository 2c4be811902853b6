"""Predictions as they come, from a broker or from a file."""

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self
from urllib.parse import SplitResult, unquote, urlsplit

from lichen.client.prediction import Prediction
from lichen.client.recorded import Tail, understood

MAX_WAITING: Final = 1024
"""Predictions that wait for the iterating program; beyond it the oldest are dropped and counted."""
_SCHEMES: Final = {"mqtt": 1883, "mqtts": 8883}
_POLL_S: Final = 0.2


class _Source(Protocol):
    state: str

    def close(self) -> None:
        """Stop it."""


class Predictions(Iterator[Prediction]):
    """An endless iterator; also a context manager. Made by :func:`predictions`.

    Attributes:
        dropped: predictions dropped because the program was too slow.
        skipped: messages and lines that were no prediction.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._waiting: deque[Prediction] = deque()
        self._came = threading.Condition()
        self._failed: Exception | None = None
        self._closed = False
        self._source: _Source | None = None
        self.dropped = 0
        self.skipped = 0

    @property
    def state(self) -> str:
        """The present state or wait, in words."""
        return "closed" if self._closed or self._source is None else self._source.state

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Prediction:
        """Wait for the next one.

        Raises:
            TimeoutError: nothing came in ``timeout_s``; it may be called again.
            PermissionError: the broker denies access.
            StopIteration: it was closed.
        """
        with self._came:
            ready = self._came.wait_for(
                lambda: self._waiting or self._failed or self._closed, self._timeout_s
            )
            if self._waiting:
                return self._waiting.popleft()
            if self._failed is not None:
                raise self._failed
            if ready:
                raise StopIteration
        raise TimeoutError(f"no prediction in {self._timeout_s:g} s: {self.state}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a waiting call ends with ``StopIteration``."""
        with self._came:
            self._closed = True
            self._came.notify_all()
        if self._source is not None:
            self._source.close()

    def put(self, prediction: Prediction | None) -> None:
        """Add a source's prediction, or count a line that is none; from any thread."""
        with self._came:
            if prediction is None:
                self.skipped += 1
                return
            self._waiting.append(prediction)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._came.notify_all()

    def fail(self, error: Exception) -> None:
        """A source cannot continue; from any thread."""
        with self._came:
            self._failed = error
            self._came.notify_all()

    def begin(self, source: _Source) -> None:
        """Set the source, for :attr:`state` and :meth:`close`."""
        self._source = source


def predictions(
    where: str | Path = "mqtt://127.0.0.1/lichen/+",
    *,
    protocol: Literal["5", "3.1.1"] = "5",
    username: str | None = None,
    password: str | None = None,
    ca_file: str | Path | None = None,
    timeout_s: float | None = None,
) -> Predictions:
    """Iterate over predictions as they come, without end, through restarts of broker and agent.

    Args:
        where: ``mqtt://host:port/topic``, with the agent's ``infer.mqtt.topic`` (``+`` stands for any level);
            ``mqtts://`` is over TLS. Or the agent's ``infer.output``, from which new lines are read.
        protocol: version of MQTT.
        username: for the broker; also ``mqtt://name:password@host``.
        password: for the broker.
        ca_file: authority that signed the broker's certificate; None: the system's.
        timeout_s: the longest wait for the next one; None: no limit.

    Raises:
        ValueError: ``where`` is no such address.
    """
    url = urlsplit(str(where)) if "://" in str(where) else None
    found = Predictions(timeout_s)
    if url is None:
        found.begin(_Following(Path(where), found))
        return found
    topic = "" if {"#", "?"} & {*str(where)} else url.path.strip("/")  # a URL ends there
    if url.scheme not in _SCHEMES or not url.hostname or not topic or not _has_port(url):
        # Not the address itself: it may have a password, and an error is logged.
        raise ValueError("the address is not mqtt://host:port/topic, mqtts://host/topic or a file")
    from lichen.client.listen import Listening  # noqa: PLC0415 - readers of a file need no paho

    found.begin(
        Listening(
            url.hostname,
            url.port or _SCHEMES[url.scheme],
            unquote(topic),
            found.put,
            found.fail,
            protocol=protocol,
            username=username or _unquoted(url.username),
            password=password or _unquoted(url.password),
            tls=url.scheme == "mqtts",
            ca_file=None if ca_file is None else str(ca_file),
        )
    )
    return found


def _has_port(url: SplitResult) -> bool:
    """Whether the port is a number, or left out."""
    try:
        return url.port != 0
    except ValueError:
        return False


def _unquoted(word: str | None) -> str | None:
    return None if word is None else unquote(word)


class _Following:
    """New lines of a file, in a thread."""

    def __init__(self, path: Path, found: Predictions) -> None:
        self._path, self._found = path, found
        self._over = threading.Event()
        self._tail = Tail(path)  # before the thread: lines that are written after we return count
        self.state = f"follows {path}"
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                for line in self._tail.lines():
                    self._found.put(understood(line, str(self._path)))
            except OSError as error:
                self._found.fail(error)
                return
            self._over.wait(_POLL_S)

    def close(self) -> None:
        self._over.set()
        self._thread.join(2 * _POLL_S)
        self._tail.close()
