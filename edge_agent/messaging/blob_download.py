"""Downloads blobs over HTTPS from the hosts that ``[download]`` names (ADR 39).

The URL comes from the coordinator, so it is not trusted: only https, only a host and port of the operator's
list, no redirect, no proxy of the environment. What comes is bounded by the blob's size and checked by its
digest. Received chunks stay, so that a later attempt, or chunks over MQTT, continue.
"""

import asyncio
import http.client
import re
import ssl
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.https_client import CuttableConnection
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.concurrency.uninterrupted import finished
from runtime.storage.blob_store import Partial

_log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 10.0
"""Of one read: a server that sends nothing for this long has failed."""
_MOST_RANGES: Final = 16
"""Requests of one download."""
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/\d+\Z")
_HTTPS: Final = 443


def download_of(settings: AgentSettings) -> "BlobDownload | None":
    """What follows the coordinator's URLs; None: the operator permits no host.

    Raises:
        Misconfigured: ``download.ca_file`` cannot be read.
    """
    if not settings.download.hosts:
        return None
    file = settings.download.ca_file
    try:
        context = ssl.create_default_context(cafile=None if file is None else str(file))
    except OSError as error:
        raise Misconfigured(f"download.ca_file: {file}: {error.strerror or error}") from None
    return BlobDownload(settings.download.hosts, context, settings.fetch_timeout_s / 2)


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    port: int
    target: str
    """Path and query: a secret."""


def permitted(url: str, hosts: tuple[str, ...]) -> _Place:
    """The parts of a URL that may be opened.

    Args:
        url: of the coordinator.
        hosts: ``host`` or ``host:port`` of the operator.

    Raises:
        Refused: it may not; the message names scheme, host and port alone.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _HTTPS
    except ValueError:
        raise Refused(Reason.MALFORMED, "the coordinator sent no URL to download from") from None
    allowed = {one if ":" in one else f"{one}:{_HTTPS}" for one in map(str.casefold, hosts)}
    sound = parts.scheme == "https" and "@" not in parts.netloc and url.isascii() and url.isprintable()
    if not sound or " " in url or f"{host}:{port}" not in allowed:
        where = f"{parts.scheme[:16]!r}, {host[:80]!r}, port {port}"
        raise Refused(
            Reason.UNTRUSTED, f"a URL of {where} is not opened: download.hosts permits {', '.join(hosts)}"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Place(host, port, target)


class BlobDownload:
    """A :class:`runtime.storage.blob_fetcher.Download` of permitted hosts.

    Args:
        hosts: ``host`` or ``host:port``.
        context: the trusted certificates.
        timeout_s: of one request; half of what a fetch may take, so that chunks can bring the rest.
    """

    def __init__(self, hosts: tuple[str, ...], context: ssl.SSLContext, timeout_s: float) -> None:
        self._hosts = hosts
        self._context = context
        self._timeout_s = timeout_s

    async def __call__(self, url: str, partial: Partial) -> None:
        """Download the missing chunks.

        Raises:
            Refused: the URL may not be opened, or the server sends something else.
            Transient: the server cannot be reached, is too slow or fails, or the disk is full.
        """
        place = permitted(url, self._hosts)
        for first, last in partial.missing(_MOST_RANGES):
            connection = CuttableConnection(place.host, place.port, self._context, _TIMEOUT_S)
            work = asyncio.ensure_future(
                asyncio.to_thread(_download, connection, place.target, partial, first, last)
            )
            late = asyncio.get_running_loop().call_later(self._timeout_s, connection.cut)
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the thread writes: it ends before another download begins
                connection.cut()
                await finished(asyncio.wait([work]))
                raise
            finally:
                late.cancel()
        _log.info("downloaded", blob=partial.ref.digest, host=place.host, bytes=partial.ref.size)


def _download(connection: CuttableConnection, target: str, partial: Partial, first: int, last: int) -> None:
    """Chunks ``first`` to ``last``, one after another; blocks.

    Raises:
        Refused, Transient: as :meth:`BlobDownload.__call__`.
    """
    start = first * partial.chunk_bytes
    end = min((last + 1) * partial.chunk_bytes, partial.ref.size)
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity", "Connection": "close"}
    with closing(connection):
        try:
            connection.request("GET", target, headers=headers)
            with connection.getresponse() as response:
                _check(response, start, partial.ref.size)
                for index in range(first, last + 1):
                    wanted = min(partial.chunk_bytes, partial.ref.size - index * partial.chunk_bytes)
                    data = response.read(wanted)
                    if len(data) < wanted:
                        raise Transient(f"{connection.host} sent less than it announced")
                    partial.add(index, data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
            raise Transient(
                f"the download from {connection.host} failed: {words or type(error).__name__}"
            ) from None


def _check(response: http.client.HTTPResponse, start: int, size: int) -> None:
    """Check that the answer begins where it was asked to."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        found = _RANGE.match(response.headers.get("Content-Range", ""))
        if found is not None and int(found[1]) == start:
            return
        raise Refused(Reason.MALFORMED, "the server sends another range than it was asked for")
    if response.status == http.HTTPStatus.OK and start == 0 and response.length == size:
        return
    raise Transient(f"the server answers the download with status {response.status}")
