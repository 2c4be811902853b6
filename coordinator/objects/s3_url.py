"""The URL of a bucket: ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME&downloads=URL&path_style=no``."""

import configparser
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from protocol.errors import Misconfigured

KEY: Final = "storage.blobs"
"""The setting, for messages."""
FORM: Final = "s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,64}/){0,8}\Z")
_OPTIONS: Final = ("endpoint", "region", "downloads", "path_style")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A place in a bucket.

    Attributes:
        bucket: its name.
        prefix: of every key; empty, or with a slash at its end.
        endpoint: URL of the service; empty: AWS.
        region: of the bucket.
        downloads: URL of the service as devices reach it; empty: ``endpoint``.
        path_style: the bucket is in the path, not in the host name.
    """

    bucket: str
    prefix: str
    endpoint: str
    region: str
    downloads: str
    path_style: bool

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" + (f" at {self.endpoint}" if self.endpoint else "")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """An access key; never shown."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""


def parse(url: str) -> S3Location:
    """Read the URL.

    Raises:
        Misconfigured: it is not of that form; the message never repeats what may be a secret.
    """
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        secret = parts.username is not None or "@" in parts.netloc
    except ValueError:
        raise _wrong(f"it is no URL of the form {FORM}") from None
    if parts.scheme != "s3" or parts.fragment:
        raise _wrong(f"write {FORM}, or leave it out for the folder blobs in state_dir")
    if secret:
        raise _wrong("no credentials in the URL: set storage.credentials, or AWS_ACCESS_KEY_ID and the like")
    if not _BUCKET.match(parts.netloc):
        raise _wrong("after s3:// comes the name of a bucket (3 to 63 of a-z, 0-9, '-', '.')")
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or any(len(values) != 1 for values in options.values()):
        raise _wrong(f"after '?' each of {', '.join(_OPTIONS)} may come once, and nothing else")
    prefix = parts.path.strip("/")
    prefix = f"{prefix}/" if prefix else ""
    if not _PREFIX.match(prefix) or {".", ".."} & set(prefix.split("/")):
        raise _wrong("a prefix has at most 8 parts of letters, digits, '.', '_' and '-'")
    given = {name: values[0] for name, values in options.items()}
    style = given.get("path_style", "yes" if given.get("endpoint") else "no")
    if style not in {"yes", "no"}:
        raise _wrong("path_style is yes or no")
    return S3Location(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=_service(given, "endpoint"),
        region=given.get("region", "us-east-1"),
        downloads=_service(given, "downloads"),
        path_style=style == "yes",
    )


def below(url: str, *parts: str) -> str:
    """The URL of a place below another one: its prefix is longer by these parts. Checks nothing."""
    base, mark, options = url.partition("?")
    return "/".join((base.rstrip("/"), *parts)) + mark + options


def _service(given: dict[str, str], name: str) -> str:
    """A URL of a service, without a path or credentials."""
    text = given.get(name, "")
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in {"https", "http"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise _wrong(f"{name} is https://HOST:PORT (http only inside of a network that you trust)")
    return text.rstrip("/")


def _wrong(words: str) -> Misconfigured:
    return Misconfigured(f"{KEY}: {words}")


def credentials_of(file: Path | None) -> Credentials | None:
    """The access key: from a file, else from the environment; None: the machine's role (AWS).

    Args:
        file: of the form of ``~/.aws/credentials``: a section with ``aws_access_key_id``,
            ``aws_secret_access_key`` and perhaps ``aws_session_token``; the first section counts.

    Raises:
        Misconfigured: the file cannot be read, or lacks one of the two.
    """
    if file is not None:
        return _of_file(file)
    name, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if name and secret:
        return Credentials(name, secret, os.environ.get("AWS_SESSION_TOKEN", ""))
    return None


def _of_file(file: Path) -> Credentials:
    reader = configparser.ConfigParser(interpolation=None)
    try:
        reader.read_string(file.read_text(encoding="utf-8"))
        section = reader[reader.sections()[0]]
        return Credentials(
            section["aws_access_key_id"],
            section["aws_secret_access_key"],
            section.get("aws_session_token", ""),
        )
    except OSError as error:
        raise Misconfigured(f"storage.credentials: {file}: {error.strerror}") from None
    except (configparser.Error, ValueError, LookupError):  # their texts quote lines of the file
        words = "a section with aws_access_key_id and aws_secret_access_key, as in ~/.aws/credentials"
        raise Misconfigured(f"storage.credentials: {file} does not hold {words}") from None
