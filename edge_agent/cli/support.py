"""``lichen agent support``: a bundle for people who look for a fault elsewhere."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config
from edge_agent.config.agent import AgentSettings, read
from edge_agent.identity.files import folder_of
from edge_agent.identity.secret_values import secrets_of
from edge_agent.labels.local_client import ask
from edge_agent.labels.requests import SOCKET, LastLines
from protocol.errors import LichenError
from runtime.cli import Format, FormatOption, fail, print_result
from runtime.diagnosis.configuration import configuration_files, environment_secrets, private_key_lines
from runtime.diagnosis.machine import environment, versions
from runtime.diagnosis.redaction import secret_values
from runtime.diagnosis.stored_files import databases, folders
from runtime.diagnosis.support_bundle import Part, own_command, service_log, write_bundle

_UNIT = "lichen-agent"
_CLI = "edge_agent.cli.main"


def support(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="the new file")],
    config: Config = DEFAULT_CONFIG,
    *,
    log: Annotated[
        list[Path] | None, typer.Option("--log", help="a file with the agent's log, if it is not in journald")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="do not connect to the broker")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a support bundle: versions, configuration, status, findings, log and sizes, without secrets.

    Contains no sensor data. Works while the agent runs, is stopped, or cannot start. Read it before you send
    it: a log line may quote what a sensor sent.
    """
    try:
        done = write_bundle(file, *_contents(config, log or [], offline=offline))
    except LichenError as error:
        fail("lichen agent support", error, output)
    found = {"file": str(file), "bytes": done.size, "parts": dict(done.parts)}
    words = f"{file}: {done.size} bytes, {len(done.parts)} parts"
    if done.incomplete:
        words += f"; not whole: {', '.join(done.incomplete)}"
    print_result(output, found | {"incomplete": list(done.incomplete)}, words)


def _contents(config: Path, log: list[Path], *, offline: bool) -> tuple[Mapping[str, Part], set[str]]:
    """The parts, and the secrets of this device."""
    secrets = environment_secrets(os.environ)
    settings: AgentSettings | None = None
    try:
        settings = read(config)
        secrets |= secrets_of(settings)
    except LichenError:  # the parts show why; what the files call a secret is known all the same
        for values in configuration_files(config).values():
            secrets |= secret_values(values)
    status = partial(own_command, _CLI, "status", "--config", str(config))
    doctor = ["doctor", "--config", str(config), "--format", "json", *(["--offline"] if offline else [])]
    parts: dict[str, Part] = {
        "versions.json": versions,
        "configuration.json": partial(configuration_files, config),
        "check.json": partial(own_command, _CLI, "check", "--config", str(config), "--format", "json"),
        "status.json": partial(status, "--format", "json"),
        "why.txt": partial(status, "--why"),
        "doctor.json": partial(own_command, _CLI, *doctor),
        "log.txt": partial(service_log, _UNIT, log),
    }
    places: dict[str, Path] = {"config": config.parent}
    if settings is not None:
        places = {"state_dir": settings.state_dir, "cache_dir": settings.cache_dir}
        parts["settings.json"] = partial(_settings, settings)
        parts["last_lines.json"] = partial(ask, settings.cache_dir / SOCKET, LastLines(do="lines"))
        parts["folders.json"] = partial(folders, places)
        parts["databases.json"] = partial(databases, places)
        secrets |= private_key_lines(folder_of(settings.device_dir).path.glob("*.pem"))
    parts["environment.json"] = partial(environment, places)
    return parts, secrets


def _settings(settings: AgentSettings) -> Any:
    """All settings, with their defaults."""
    return settings.model_dump(mode="json")
