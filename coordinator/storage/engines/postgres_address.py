"""The address of a coordinator's tables on PostgreSQL: ``[storage]`` of ``coordinator.toml``. Pure.

Each fleet has schemas of its own in the database, so that several fleets can share it.
"""

import hashlib
import importlib.util
from dataclasses import dataclass, field, replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from protocol.errors import Misconfigured

_DRIVER: Final = "postgresql+psycopg"
_DRIVERS: Final = (_DRIVER, "postgresql", "postgres")
_MAX_NAME: Final = 40
"""Characters of a schema's name: PostgreSQL cuts at 63, and copies and the other schemas have suffixes."""
SUFFIXES: Final = ("device_logs", "identity", "operators", "rollout")
"""Of the other schemas of a fleet."""
_SHORTEST_SECRET: Final = 4
KEY: Final = "storage.url"
_EXAMPLE: Final = "postgresql+psycopg://lichen@db.example.org:5432/lichen"


@dataclass(frozen=True, slots=True)
class PostgresSchema:
    """One schema of a PostgreSQL database.

    Attributes:
        url: of the database; it may have a password, so it is never shown.
        name: of the schema.
        connect_timeout_s: for each attempt to connect.
    """

    url: sa.URL = field(repr=False)
    name: str
    connect_timeout_s: float = 5.0

    @property
    def where(self) -> str:
        """The address for messages: without the password, and without the query."""
        plain = sa.URL.create("postgresql", self.url.username, None, self.url.host, self.url.port)
        base = plain.render_as_string().removesuffix("/")
        host = self.url.query.get("host")
        if self.url.host is None and host is not None:
            base += host if isinstance(host, str) else ",".join(host)
        return f"{base}/{self.url.database or ''} (schema {self.name})"

    def beside(self, suffix: str) -> "PostgresSchema":
        """Another schema of the same fleet."""
        return replace(self, name=f"{self.name}_{suffix}") if suffix else self

    def scrubbed(self, text: str) -> str:
        """A text of the driver or the server without the password."""
        secret = self.url.password
        if secret is None or len(str(secret)) < _SHORTEST_SECRET:
            return text
        return text.replace(str(secret), "***")


def schema_name(fleet: str) -> str:
    """The default name of a fleet's schema."""
    return _shortened(f"lichen_{fleet}", fleet)


def task_schema(main: str, task: str) -> str:
    """The name of a further task's schema. Nothing else has two ``~``, whatever is appended to it.

    Args:
        main: the schema of the fleet's main task.
        task: the further task's name.
    """
    name = f"{main}~{task}~"
    return _shortened(name, name)


def _shortened(name: str, unique: str) -> str:
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}_{hashlib.sha256(unique.encode()).hexdigest()[:8]}"


def address_of(url: str, name: str, connect_timeout_s: float) -> PostgresSchema:
    """Parse ``storage.url``.

    Args:
        url: as the operator wrote it.
        name: of the schema.
        connect_timeout_s: for each attempt to connect.

    Raises:
        Misconfigured: it is no URL of a PostgreSQL database, or psycopg is missing. The message does not
            repeat the URL, which may have a password.
    """
    try:
        found = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise Misconfigured(f"{KEY}: it is not a URL; write it as {_EXAMPLE}") from None
    if found.drivername not in _DRIVERS:
        raise Misconfigured(
            f"{KEY}: {found.drivername} is not known here; write {_EXAMPLE}, or remove the key to store the "
            "tables in SQLite files of state_dir"
        )
    if not found.database:
        raise Misconfigured(f"{KEY}: the name of the database is missing; write it as {_EXAMPLE}")
    if importlib.util.find_spec("psycopg") is None:
        raise Misconfigured(
            f"{KEY}: the package psycopg is missing; install it: pip install 'lichen[postgres]'"
        )
    return PostgresSchema(found.set(drivername=_DRIVER), name, connect_timeout_s)
