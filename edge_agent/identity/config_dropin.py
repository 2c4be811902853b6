"""``agent.d/50-identity.toml``: the part of the agent's configuration that the certificate determines."""

import json
import os
import stat
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.files import Identity, IdentityFiles
from protocol.errors import Misconfigured
from runtime.settings.load import load
from runtime.storage.files import disk_errors, make_folder, write_atomic

NAME: Final = "50-identity.toml"
_MODE: Final = 0o644
"""It holds no secret, and the service may run as another user than the one that enrols."""


class Unenrolled(AgentSettings):
    """The configuration of a device that may not have its names yet."""

    fleet: str = ""
    device: str = ""


def path_of(config: Path) -> Path:
    """The path of the drop-in."""
    return config.with_name(f"{config.stem}.d") / NAME


def require_writable(config: Path) -> None:
    """Check that the drop-in can be written; creates its folder.

    Raises:
        Misconfigured: this user cannot write the folder.
        Transient: the disk is full.
    """
    folder = path_of(config).parent
    with disk_errors(folder):
        make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise Misconfigured(f"{folder}: not writable for this user; run this as root, or give it the folder")


def write(config: Path, folder: IdentityFiles, identity: Identity) -> Path:
    """Write the drop-in unless it is up to date; returns its path.

    Raises:
        Misconfigured: this user cannot write the folder, or the configuration still has another value.
        Transient: the disk is full.
    """
    path, data = path_of(config), _text(config, folder, identity).encode()
    with disk_errors(path):
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
        if stat.S_IMODE(path.stat().st_mode) != _MODE:
            path.chmod(_MODE)
    settings = load(AgentSettings, config)
    for key in ("fleet", "device"):
        said, meant = getattr(settings, key), getattr(identity, key)
        if said != meant:
            raise Misconfigured(
                f"{config}: {key} is {said!r}, the certificate is for {meant!r}: a later drop-in or the "
                f"variable LICHEN_{key.upper()} wins over {path}; remove it"
            )
    return path


def _text(config: Path, folder: IdentityFiles, identity: Identity) -> str:
    host = f"host = {_quoted(identity.broker_host)}\n" if identity.broker_host else ""
    pair = _quoted(_seen_from(config, folder.pair))
    return (
        "# Written by lichen agent enroll. It overrides agent.toml.\n"
        f"fleet = {_quoted(identity.fleet)}\n"
        f"device = {_quoted(identity.device)}\n\n"
        f"[mqtt]\n{host}port = {identity.broker_port}\n\n"
        "[mqtt.tls]\n"
        f"ca_file = {_quoted(_seen_from(config, folder.authority))}\n"
        "# certificate and key are one file, so that a renewal can replace both in one step\n"
        f"cert_file = {pair}\n"
        f"key_file = {pair}\n"
    )


def _seen_from(config: Path, path: Path) -> str:
    """Relative if it is below the configuration's folder: the two can then move together."""
    base, path = config.absolute().parent, path.absolute()
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
