"""Objects in a bucket, through obstore (ADR 39); only imported if ``storage.blobs`` names a bucket."""

import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from coordinator.objects.contract import FoundObject, StoreUnusable
from coordinator.objects.s3_url import KEY, Credentials, S3Location
from protocol.errors import Misconfigured, Transient

try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store
except ImportError:  # pragma: no cover - the extra is not installed
    raise Misconfigured(f"{KEY} names a bucket: install the extra, pip install 'lichen[s3]'") from None

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_PAGE: Final = 1000
_PART_BYTES: Final = 8 * 1024 * 1024
"""Larger objects are sent in parts of this size, each within the time-out."""
_STREAM_BYTES: Final = 1024 * 1024
_RETRIES: Final = 3
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_REDIRECT: Final = "Received redirect without LOCATION"
_FULL: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioStorageQuotaExceeded", "507"})
_REFUSED: Final = {
    "NoSuchBucket": "there is no such bucket: create it, or correct its name",
    "InvalidAccessKeyId": "the access key is not known there: see storage.credentials",
    "SignatureDoesNotMatch": "the secret of the access key is wrong: see storage.credentials",
    "AccessDenied": "the access key may not do this: permit GetObject, PutObject, DeleteObject, ListBucket",
    "ExpiredToken": "the credentials have expired: renew them, see storage.credentials",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the service's: set it",
    "PermanentRedirect": "the bucket is in another region: add region=NAME",
    "AuthorizationHeaderMalformed": "the bucket is in another region: add region=NAME",
    "401": "the service asks for credentials: see storage.credentials",
    "403": "the access key may not do this: permit GetObject, PutObject, DeleteObject, ListBucket",
}
_WITHOUT_ANSWER: Final = (
    (re.compile(r"TimedOut|timed out"), "no answer in time"),
    (re.compile(r"error (?:decoding|reading)|IncompleteMessage"), "the connection was cut"),
    (re.compile(r"[Cc]redential|169\.254"), "there are no credentials: see storage.credentials"),
    (re.compile(r"error sending request"), "the service cannot be reached (is the endpoint right?)"),
)
_NO_CONDITION: Final = frozenset({"NotImplemented", "501"})


class S3Objects:
    """An :class:`~coordinator.objects.contract.ObjectStore` in a bucket.

    Errors hold neither credentials nor the service's own text, which may quote them.

    Args:
        location: of the bucket.
        credentials: the access key; None: the machine's role.
        timeout_s: of one request; a request is repeated up to 3 times within the same time again.
        ca_file: further certificates to trust.
    """

    def __init__(
        self,
        location: S3Location,
        credentials: Credentials | None,
        timeout_s: float = 20.0,
        ca_file: Path | None = None,
    ) -> None:
        self._location = location
        self._timeout_s = timeout_s
        self._store = _store(location, location.endpoint, credentials, timeout_s, ca_file)
        public = location.downloads or location.endpoint
        self._public = _store(location, public, credentials, timeout_s, ca_file)
        self._conditional = True
        self._lock = threading.Lock()
        self._trouble: tuple[float, str] | None = None

    @property
    def trouble(self) -> tuple[float, str] | None:
        """See :class:`ObjectStore`."""
        return self._trouble

    def put(self, key: str, data: bytes, *, absent: bool = True, durable: bool = True) -> bool:  # noqa: ARG002 - a bucket is always durable
        """See :class:`ObjectStore`.

        A service that does not know ``If-None-Match`` is asked first whether the object is there.
        """
        if absent and (not self._conditional or len(data) > _PART_BYTES):
            if self.head(key) is not None:
                return False
            absent = False
        with self._errors("PUT"):
            try:
                obstore.put(
                    self._store,
                    key,
                    data,
                    mode="create" if absent else "overwrite",
                    use_multipart=len(data) > _PART_BYTES,
                    chunk_size=_PART_BYTES,
                    max_concurrency=2,
                )
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
            except (exceptions.NotSupportedError, exceptions.GenericError) as error:
                if not absent or not (_facts(error) & _NO_CONDITION):
                    raise
            else:
                return True
        self._conditional = False
        return self.put(key, data)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """See :class:`ObjectStore`."""
        with self._errors("GET", key):
            if size is not None:
                return bytes(obstore.get_range(self._store, key, start=start, length=size))
            if start:
                return bytes(obstore.get(self._store, key, options={"range": {"offset": start}}).bytes())
            return bytes(obstore.get(self._store, key).bytes())

    def stream(self, key: str) -> Iterator[bytes]:
        """See :class:`ObjectStore`."""
        with self._errors("GET", key):
            for part in obstore.get(self._store, key).stream(min_chunk_size=_STREAM_BYTES):
                yield bytes(part)

    def head(self, key: str) -> FoundObject | None:
        """See :class:`ObjectStore`."""
        with self._errors("HEAD"):
            try:
                found = obstore.head(self._store, key)
            except FileNotFoundError:
                found = None
        if found is not None:
            return FoundObject(key, found["size"], found["last_modified"].timestamp())
        try:  # the answer to HEAD has no body: it may come from a proxy, or for a lack of the bucket
            self.get(key)
        except KeyError:
            return None
        raise Transient(f"{self._location}: HEAD and GET of {key} disagree")

    def below(self, prefix: str) -> Iterator[FoundObject]:
        """See :class:`ObjectStore`."""
        with self._errors("LIST"):
            for page in obstore.list(self._store, prefix.rstrip("/"), chunk_size=_PAGE):
                for one in page:
                    yield FoundObject(one["path"], one["size"], one["last_modified"].timestamp())

    def remove(self, keys: Iterable[str]) -> None:
        """See :class:`ObjectStore`; a page of keys in one request."""
        page: list[str] = []
        for key in keys:
            page.append(key)
            if len(page) == _PAGE:
                self._remove(page)
                page = []
        if page:
            self._remove(page)

    def remove_below(self, prefix: str) -> None:
        """See :class:`ObjectStore`."""
        self.remove(found.key for found in self.below(prefix))

    def folders(self, prefix: str) -> set[str]:
        """See :class:`ObjectStore`."""
        with self._errors("LIST"):
            found = obstore.list_with_delimiter(self._store, prefix.rstrip("/"))
        return {folder.rstrip("/").rpartition("/")[2] for folder in found["common_prefixes"]}

    def _remove(self, keys: list[str]) -> None:
        with self._errors("DELETE"):
            obstore.delete(self._store, keys)

    def now(self) -> float:
        """See :class:`ObjectStore`: the time of an object that is written for this."""
        key = f"clock/{uuid4().hex}"
        self.put(key, b"", absent=False)
        found = self.head(key)
        self.remove([key])
        if found is None:
            raise Transient(f"{self._location}: an object is not there after it was written")
        return found.modified

    def url(self, key: str, seconds: float) -> str | None:
        """See :class:`ObjectStore`: a pre-signed GET, made without a request. It is a secret."""
        with self._errors("GET"):
            return obstore.sign(self._public, "GET", key, timedelta(seconds=seconds))

    def check(self) -> None:
        """See :class:`ObjectStore`."""
        key = f"check/{uuid4().hex}"
        self.put(key, b"lichen")
        if self.get(key) != b"lichen" or key not in {one.key for one in self.below("check")}:
            raise StoreUnusable(f"{KEY}: {self._location} does not return what was written")
        self.remove([key])

    @contextmanager
    def _errors(self, what: str, key: str | None = None) -> Iterator[None]:
        """The client's errors as ours; ``key``: KeyError if the service says that there is no such object."""
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            facts = _facts(error)
            if key is not None and isinstance(error, FileNotFoundError) and "NoSuchKey" in facts:
                self._trouble = None
                raise KeyError(f"no object {key} in {self._location}") from None
            made = self._error(what, error, facts)
            with self._lock:
                since = time.time() if self._trouble is None else self._trouble[0]
                self._trouble = (since, str(made))
            raise made from None
        else:
            self._trouble = None

    def _error(self, what: str, error: Exception, facts: frozenset[str]) -> Transient:
        where = f"{KEY}: {self._location}: {what}"
        if facts & _FULL:
            return Transient(f"{where}: the store is full, or its quota is reached; nothing was stored")
        for fact, words in _REFUSED.items():
            if fact in facts:
                return StoreUnusable(f"{where}: {words}")
        told = " ".join(sorted(facts)) or _without_answer(error)
        return Transient(f"{where}: {told}; it is tried again")


def _facts(error: Exception) -> frozenset[str]:
    """The status and the code of the service's answer; nothing else of the client's text is used."""
    text = str(error)
    found = frozenset(_CODE.findall(text)[:1]) | frozenset(_STATUS.findall(text)[:1])
    return found | {"PermanentRedirect"} if _REDIRECT in text else found


def _without_answer(error: Exception) -> str:
    text = str(error)
    words = (words for pattern, words in _WITHOUT_ANSWER if pattern.search(text))
    return next(words, "an answer that is none of S3 (is the endpoint right?)")


def _store(
    location: S3Location,
    endpoint: str,
    credentials: Credentials | None,
    timeout_s: float,
    ca_file: Path | None,
) -> S3Store:
    config: S3Config = {"region": location.region, "virtual_hosted_style_request": not location.path_style}
    if endpoint:
        config["endpoint"] = endpoint
    if credentials is not None:
        config["access_key_id"] = credentials.access_key_id
        config["secret_access_key"] = credentials.secret_access_key
        if credentials.session_token:
            config["session_token"] = credentials.session_token
    client: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
    }
    if ca_file is not None:
        try:
            client["root_certificate"] = ca_file.read_bytes()
        except OSError as error:
            raise Misconfigured(f"storage.ca_file: {ca_file}: {error.strerror}") from None
    retry: RetryConfig = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=timeout_s),
        "backoff": {
            "init_backoff": timedelta(seconds=min(0.2, timeout_s / 20)),
            "max_backoff": timedelta(seconds=min(5.0, timeout_s / 4)),
            "base": 2,
        },
    }
    try:
        return S3Store(
            location.bucket, prefix=location.prefix or None, config=config, client_options=client,
            retry_config=retry,
        )  # fmt: skip
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise Misconfigured(f"{KEY}: {location} cannot be used ({type(error).__name__})") from None
