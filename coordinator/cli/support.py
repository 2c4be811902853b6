"""``lichen coordinator support``: a bundle for people who look for a fault elsewhere."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from coordinator.cli.options import Config
from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.storage import schema
from protocol.errors import LichenError
from runtime.cli import Format, FormatOption, fail, print_result
from runtime.diagnosis.configuration import configuration_files, environment_secrets, private_key_lines
from runtime.diagnosis.machine import environment, versions
from runtime.diagnosis.redaction import secret_values
from runtime.diagnosis.stored_files import databases, folders
from runtime.diagnosis.support_bundle import Part, own_command, service_log, write_bundle

_UNIT = "lichen-coordinator"
_CLI = "coordinator.cli.main"
_MAX_BYTES = 64 * 1024
_KEY_FOLDERS = ("authority", "identity", "trust", "mosquitto")


def support(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="the new file")],
    config: Config,
    *,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="a file with the coordinator's log, if it is not in journald"),
    ] = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Write a support bundle: versions, configuration, status, log, and sizes of tables, without secrets.

    Contains no model, update or key. Works while the coordinator runs, is stopped, or cannot start. Read it
    before you send it: it names devices.
    """
    try:
        done = write_bundle(file, *_contents(config, log or []))
    except LichenError as error:
        fail("lichen coordinator support", error, fmt)
    found = {"file": str(file), "bytes": done.size, "parts": dict(done.parts)}
    words = f"{file}: {done.size} bytes, {len(done.parts)} parts"
    if done.incomplete:
        words += f"; not whole: {', '.join(done.incomplete)}"
    print_result(fmt, found | {"incomplete": list(done.incomplete)}, words)


def _contents(config: Path, log: list[Path]) -> tuple[Mapping[str, Part], set[str]]:
    """The parts, and the secrets of this coordinator."""
    secrets, files = environment_secrets(os.environ), configuration_files(config)
    for values in files.values():
        secrets |= secret_values(values)
    settings: CoordinatorSettings | None = None
    with suppress(LichenError):  # the parts show why
        settings = load_settings(config)
    status = partial(own_command, _CLI, "status", "--config", str(config))
    parts: dict[str, Part] = {
        "versions.json": versions,
        "configuration.json": partial(configuration_files, config),
        "check.json": partial(own_command, _CLI, "check", "--config", str(config), "--format", "json"),
        "status.json": partial(status, "--format", "json"),
        "why.txt": partial(status, "--why"),
        "log.txt": partial(service_log, _UNIT, log),
    }
    places: dict[str, Path] = {"config": config.parent}
    if settings is not None:
        places = {"state_dir": settings.state_dir}
        parts["settings.json"] = partial(_settings, settings)
        parts["folders.json"] = partial(folders, places)
        parts["databases.json"] = partial(databases, places)
        for name in settings.task_names():
            places[f"task {name}"] = settings.for_task(name).state_dir
            of_task = (*("--task", name), *("--format", "json"))
            parts[f"status-{name}.json"] = partial(status, *of_task)
        if settings.storage.url:
            parts["tables.json"] = partial(_tables, settings)
        secrets |= _secrets(settings)
    parts["environment.json"] = partial(environment, places)
    return parts, secrets


def _settings(settings: CoordinatorSettings) -> Any:
    """All settings, with their defaults."""
    return settings.model_dump(mode="json")


def _tables(settings: CoordinatorSettings) -> dict[str, int]:
    """Rows of the tables in PostgreSQL."""
    with settings.location.database(read_only=True) as store:
        return {
            table.name: int(
                store.rows(sa.select(sa.func.count().label("rows")).select_from(table))[0]["rows"]
            )
            for table in schema.metadata.sorted_tables
        }


def _secrets(settings: CoordinatorSettings) -> set[str]:
    """Passwords, access keys and private keys that this coordinator uses."""
    found = secret_values(settings.model_dump(mode="json")) | {settings.storage.url}
    for path in (settings.mqtt.password_file, settings.storage.credentials):
        if path is not None:
            with suppress(OSError), path.open("rb") as file:
                lines = file.read(_MAX_BYTES).decode(errors="replace").splitlines()
                found |= {line.strip() for line in lines} | {line.partition("=")[2].strip() for line in lines}
    return (found | private_key_lines(_key_files(settings))) - {""}


def _key_files(settings: CoordinatorSettings) -> Iterator[Path]:
    for name in _KEY_FOLDERS:
        yield from (settings.state_dir / name).rglob("*.pem")
    if settings.mqtt.tls is not None and settings.mqtt.tls.key_file is not None:
        yield settings.mqtt.tls.key_file
