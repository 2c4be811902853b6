"""The secrets of this device as they stand in its files, so that they can be removed from what leaves it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.fleet_secret import secret_path
from runtime.diagnosis.redaction import secret_values

_MAX_BYTES: Final = 64 * 1024


def secrets_of(settings: AgentSettings) -> set[str]:
    """Passwords, the fleet's secret, and values of settings whose key names a secret.

    A file that is missing or cannot be read has no secret that this process could give away.
    """
    found = secret_values(settings.model_dump(mode="json"))
    for path in _files(settings):
        with suppress(OSError), path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace").strip()
            found |= {text, *text.splitlines()}
    return {one.strip() for one in found} - {""}


def _files(settings: AgentSettings) -> Iterator[Path]:
    """Files that hold a secret and nothing else."""
    yield secret_path(settings)
    for broker in (settings.mqtt, settings.infer.mqtt):
        if broker is not None and broker.password_file is not None:
            yield broker.password_file
    for source in settings.source:
        if isinstance(name := source.get("password_file"), str):
            yield Path(name)
