"""Settings: a TOML file, drop-ins beside it, environment variables; every error names file and key.

Order, later wins: ``agent.toml``, then ``agent.d/*.toml`` in name order (tables merge, other values and lists
are replaced), then ``LICHEN_MQTT__HOST`` and the like. A variable without ``__`` counts only where it names a
top-level key (``LICHEN_FLEET``); an unknown one with ``__`` is an error, as an unknown key is.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from protocol.errors import Misconfigured
from runtime.settings.errors import Origins, explain
from runtime.settings.strict_types import RawValue, plain, wrong_kinds


class Section(BaseModel):
    """One table of a settings file: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=BaseModel)
_Extra = Literal["forbid"] | None


def beside_the_file(path: Path, info: ValidationInfo) -> Path:
    """The path with ``~`` expanded; a relative one starts at the folder of the file that is read."""
    path = path.expanduser()
    base = (info.context or {}).get("folder")
    return path if base is None else Path(base) / path


ConfigPath = Annotated[Path, AfterValidator(beside_the_file)]
"""A path in a settings file: ``~`` is expanded; a relative one starts at the folder of the (main) file."""


class TlsSettings(Section):
    """``[mqtt.tls]``: PEM files. Without ``ca_file`` the system's authorities are trusted."""

    ca_file: ConfigPath | None = None
    cert_file: ConfigPath | None = None
    key_file: ConfigPath | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together: give both or neither")
        return self


class BrokerSettings(Section):
    """Where a broker is, and how to log in."""

    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 1883
    protocol: Literal["5", "3.1.1"] = "5"
    username: str | None = None
    password_file: ConfigPath | None = None
    """The first line is the password."""
    tls: TlsSettings | None = None

    @model_validator(mode="after")
    def _password_has_a_user(self) -> Self:
        if self.password_file is not None and self.username is None:
            raise ValueError("password_file is given without username")
        return self

    def link_with(self, **limits: Any) -> "MqttSettings":
        """Settings of a connection; the broker keeps nothing while we are away."""
        address = {name: getattr(self, name) for name in BrokerSettings.model_fields}
        return MqttSettings(**address, ping_s=0, session_expiry_s=0, **limits)


class MqttSettings(BrokerSettings):
    """``[mqtt]``: where the broker is and the limits of the link (docs/transport.md)."""

    keepalive_s: Annotated[int, Field(ge=1, le=65535)] = 30
    max_packet_bytes: Annotated[int, Field(ge=4096, le=256 * 1024 * 1024)] = 256 * 1024
    """Largest packet that is sent if the broker's CONNACK names no Maximum Packet Size."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 65536
    window: Annotated[int, Field(ge=1, le=64)] = 4
    """Chunks in flight. One more publish is reserved for control messages."""
    ping_s: Annotated[float, Field(ge=0, le=3600)] = 45.0
    """After so long without anything from the broker, a ping is published, to see if it answers; 0: never."""
    ping_timeout_s: Annotated[float, Field(gt=0, le=600)] = 15.0
    """Without an answer in this time the link is dead, whatever TCP says, and reconnects."""
    max_publishes_per_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """At most so many publishes in any second; 0: no limit. AWS IoT Core allows 100."""
    max_bytes_per_s: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """At most so many bytes of publishes in any second; 0: no limit. AWS IoT Core allows 524288."""
    session_expiry_s: Annotated[int, Field(ge=0, le=2**32 - 1)] = 3600
    """How long the broker stores queued messages while we are away (MQTT 5)."""
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    backoff_min_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    backoff_max_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """The n-th wait before a new attempt is drawn from 0 to min(backoff_max_s, backoff_min_s * 2^n). After a
    connection, n is at most 3: a link that is cut every few seconds still gets something done."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backoff_max_s < self.backoff_min_s:
            raise ValueError("backoff_max_s is below backoff_min_s")
        if 0 < self.max_bytes_per_s < self.chunk_bytes:
            raise ValueError("max_bytes_per_s is below chunk_bytes: a chunk would never fit into a second")
        if 0 < self.max_publishes_per_s < 1:
            raise ValueError("max_publishes_per_s: at least 1, or 0 for no limit")
        return self

    @property
    def where(self) -> str:
        """``host:port``, for messages."""
        return f"{self.host}:{self.port}"


class LogSettings(Section):
    """``[log]``: ``auto`` is ``console`` at a terminal, else ``json``."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console", "auto"] = "auto"


def load(
    model: type[S], file: Path, *, env_prefix: str = "LICHEN_", environ: Mapping[str, str] | None = None
) -> S:
    """Read a daemon's settings: file, drop-ins in ``<stem>.d/*.toml``, environment.

    Raises:
        Misconfigured: a file is missing, unreadable or not TOML; a key is unknown, missing or wrong. The
            message has a line for every wrong key, with the file (or variable) that set it.
    """
    values: dict[str, Any] = {}
    origins = Origins(str(file))
    for path in (file, *sorted(file.with_name(f"{file.stem}.d").glob("*.toml"))):
        _merge(values, _read(path), str(path), origins, ())
    env = os.environ if environ is None else environ
    if any(name.upper().startswith(env_prefix) for name in env):
        # most have none, and pydantic-settings costs a small device a megabyte and a tenth of a second
        from runtime.settings.environment import variables  # noqa: PLC0415

        for path_, value in _leaves(variables(model, env_prefix, env)):
            _put(values, path_, RawValue(value) if isinstance(value, str) else value)
            origins.note(path_, env_prefix + "__".join(path_).upper())
    return _validate(model, values, file, origins)


def load_toml(model: type[S], file: Path, *, named_by: str = "") -> S:
    """Read one TOML file (no drop-ins, no environment); errors as :func:`load`.

    Unknown keys are errors even if the model ignores them on the wire.

    Args:
        model: of the whole file.
        file: its path.
        named_by: the settings key (or option) that names the file, for the message if it does not exist.
    """
    hint = f"; {named_by} names it: correct the path, or make the file" if named_by else ""
    return _validate(model, _read(file, hint), file, Origins(str(file)), "forbid")


def check_table(
    model: type[S], values: Mapping[str, Any], where: str, folder: Path, extra: _Extra = None
) -> S:
    """Check a table that is already read.

    Args:
        model: its keys.
        values: the table.
        where: file and path of the table, for messages, such as ``agent.toml: source[0]``.
        folder: the start of its relative paths.
        extra: how to treat unknown keys; None: as the model says.

    Raises:
        Misconfigured: as :func:`load`, a line for every wrong key.
    """
    return _checked(model, values, folder, Origins(where), joint=".", extra=extra)


def _validate(
    model: type[S], values: dict[str, Any], file: Path, origins: Origins, extra: _Extra = None
) -> S:
    return _checked(model, values, file.absolute().parent, origins, extra=extra)


def _checked(
    model: type[S],
    values: Mapping[str, Any],
    folder: Path,
    origins: Origins,
    *,
    joint: str = ": ",
    extra: _Extra = None,
) -> S:
    """``extra``: how to treat unknown keys, whatever the model says."""
    wrong = wrong_kinds(model, values)
    settings, error = None, None
    try:
        settings = model.model_validate(plain(values), context={"folder": folder}, extra=extra)
    except ValidationError as other:
        error = other
    if settings is None or wrong:
        raise Misconfigured(explain(model, values, error, origins, wrong, joint=joint))
    return settings


def _read(path: Path, hint: str = "; give the settings file with --config") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Misconfigured(f"{path}: no such file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path}: not valid TOML: {error}") from None


def _merge(
    into: dict[str, Any], new: Mapping[str, Any], source: str, origins: Origins, at: tuple[str, ...]
) -> None:
    for key, value in new.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, source, origins, path)
        else:
            into[key] = value
            origins.note(path, source)


def _leaves(values: Mapping[str, Any], at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            leaves += _leaves(value, (*at, key))
        else:
            leaves.append(((*at, key), value))
    return leaves


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        inner = values.get(part)
        if not isinstance(inner, dict):
            inner = values[part] = {}
        values = inner
    values[path[-1]] = value
