"""``lichen broker check``: the command line."""

import json
import secrets
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from lichen.broker.check import check as run_check
from lichen.broker.client_types import NoAnswer
from lichen.broker.lab import Lab
from lichen.broker.verdicts.finding import BrokerFinding
from lichen.broker.verdicts.table import exit_code
from lichen.commands.status import Where, whereabouts
from protocol.base import name_trouble
from protocol.errors import LichenError, Misconfigured
from runtime import exit_codes
from runtime.cli import Format, FormatOption, fail
from runtime.mqtt.link import read_password
from runtime.settings.load import MqttSettings, load

app = typer.Typer(no_args_is_help=True, help="Check what a broker can do.", add_completion=False)
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_COLOURS: Final = {"passed": "green", "limited": "yellow", "failed": "red", "untried": "cyan"}
_INDENT: Final = 30
_TROUBLE: Final = "lichen broker"


@app.callback()
def root() -> None:
    """Keep the subcommand's name in the command line."""


def settings_of(url: str, given: MqttSettings) -> MqttSettings:
    """The broker of a URL, ``mqtt://host:port`` or ``mqtts://host:port``; the rest from ``given``.

    Raises:
        Misconfigured: it is no such URL.
    """
    try:
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        port = parts.port
    except ValueError as error:
        raise Misconfigured(f"{url!r}: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise Misconfigured(f"{url!r}: write mqtt://host:port, or mqtts://host:port for TLS")
    if parts.password is not None:
        raise Misconfigured("a password in a URL is seen by other users of this machine: use --password-file")
    values = given.model_dump() | {"host": parts.hostname, "port": port or _PORTS[parts.scheme]}
    if parts.username is not None:
        values["username"] = parts.username
    if parts.scheme == "mqtts":
        values["tls"] = values["tls"] or {}
    elif values["tls"] is not None:
        raise Misconfigured(f"{url!r}: TLS options, or [mqtt.tls], need mqtts://")
    return _checked(values)


def _checked(values: dict[str, object]) -> MqttSettings:
    try:
        return MqttSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Misconfigured(f"{where}: {first['msg']}".lstrip(": ")) from None


def prefix_trouble(prefix: str) -> str:
    """Why this cannot be a prefix of topics; empty if it can."""
    if any(letter in prefix for letter in "+#$\0") or prefix.startswith("/") or prefix.endswith("/"):
        return "no '+', '#' or '$' in it, and no '/' at its ends"
    if prefix.count("/") > 3 or len(prefix.encode()) > 80:  # noqa: PLR2004 - room for the longest topic below it
        return "at most 4 levels and 80 bytes"
    return "" if prefix else "it is empty"


@app.command()
def check(
    *,
    url: Annotated[str | None, typer.Argument(help="mqtt://host:port, or mqtts://host:port for TLS")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="agent.toml or coordinator.toml: fleet and [mqtt]")
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="name of the fleet in the topics", show_default="lichen")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="topics start with this", show_default="lichen/v1/FLEET")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="5 or 3.1.1", show_default="5, and 3.1.1 where that is refused")
    ] = None,
    username: Annotated[str | None, typer.Option(help="account at the broker")] = None,
    password_file: Annotated[Path | None, typer.Option(help="its first line is the password")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="authority of the broker's certificate")] = None,
    cert_file: Annotated[Path | None, typer.Option(help="own certificate")] = None,
    key_file: Annotated[Path | None, typer.Option(help="key of the certificate")] = None,
    device_config: Annotated[
        Path | None, typer.Option(help="an agent.toml: try what that device may write")
    ] = None,
    device: Annotated[str, typer.Option(help="name of that device")] = "",
    limit_s: Annotated[float, typer.Option(help="seconds for all probes together", min=5, max=600)] = 60.0,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Try what lichen needs of a broker; each row says what was seen, and what follows for lichen.

    Publishes below a random topic level and removes all of it. Exit status 0: the broker can be used; 65: it
    lacks something needed; 69: no connection; 75: a probe was not over in time; 78: a wrong option.
    """
    tls = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
    given = {"protocol": protocol, "username": username, "password_file": password_file}
    try:
        where = _where(url, config, fleet, given, {k: v for k, v in tls.items() if v is not None})
        lab = _lab(where, prefix, device_config, device)
        rows = run_check(lab, limit_s, either=protocol is None)
    except NoAnswer as error:
        fail(f"{_TROUBLE}: {where.mqtt.where}", str(error), output_format, exit_codes.UNAVAILABLE)
    except LichenError as error:
        fail(_TROUBLE, error, output_format)
    code = exit_code(rows)
    if output_format is Format.JSON:
        found = {
            "broker": lab.settings.where,
            "protocol": lab.settings.protocol,
            "usable": code == exit_codes.OK,
        }
        typer.echo(json.dumps(found | {"findings": [row.as_json() for row in rows]}))
    else:
        typer.echo(f"{lab.settings.where}, MQTT {lab.settings.protocol}, topics below {lab.prefix}")
        _show(rows)
    raise typer.Exit(code)


def _where(
    url: str | None,
    config: Path | None,
    fleet: str | None,
    given: Mapping[str, object],
    tls: dict[str, Path],
) -> Where:
    if url is None and config is None:
        raise Misconfigured("which broker? Give mqtt://host:port, or --config FILE")
    base = whereabouts(config, fleet or ("lichen" if config is None else None), {})
    values = base.mqtt.model_dump() | {key: value for key, value in given.items() if value is not None}
    if tls:
        values["tls"] = (values["tls"] or {}) | tls
    mqtt = _checked(values)
    return Where(fleet=base.fleet, mqtt=mqtt if url is None else settings_of(url, mqtt))


class _Device(Where):
    """The device's name from its ``agent.toml``, too."""

    device: str = ""


def _lab(where: Where, prefix: str | None, device_config: Path | None, device: str) -> Lab:
    """The topics and credentials of this check.

    Raises:
        Misconfigured: a file or a name is wrong.
    """
    start, run = prefix if prefix is not None else f"lichen/v1/{where.fleet}", secrets.token_hex(4)
    if words := prefix_trouble(start):
        raise Misconfigured(f"--prefix {start!r}: {words}")
    lab = Lab(where.mqtt, read_password(where.mqtt), f"{start}/check-{run}", run, where.fleet)
    if device_config is None:
        return lab
    other = load(_Device, device_config, environ={})
    name = device or other.device
    if words := name_trouble(name):
        raise Misconfigured(f"{device_config}: device: {words} (or --device)")
    lab.device, lab.device_name = other.mqtt, name
    lab.device_password = read_password(other.mqtt)
    return lab


def _show(rows: Iterable[BrokerFinding]) -> None:
    """A paragraph for each row: result, name, observation, and what follows."""
    rows, width = list(rows), max(60, shutil.get_terminal_size().columns - _INDENT)
    for row in rows:
        result = typer.style(f"{row.result:8}", fg=_COLOURS[row.result])
        lines = textwrap.wrap(f"{row.tried}: {row.measured}", width)
        if row.consequence:
            lines += textwrap.wrap(f"-> {row.consequence}", width, subsequent_indent="   ")
        typer.echo(f"{result} {row.check:20} " + ("\n" + " " * _INDENT).join(lines))
    counts = {name: sum(row.result == name for row in rows) for name in _COLOURS}
    typer.echo(", ".join(f"{count} {name}" for name, count in counts.items() if count))
