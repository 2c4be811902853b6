"""The files of a configuration as they are, also where they are wrong; and secrets of the environment."""

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runtime.diagnosis.redaction import is_secret_key, secret_values

_MAX_BYTES: Final = 256 * 1024
_MAX_FILES: Final = 64
_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
_MIN_SECRET: Final = 6
"""Characters; ``TOKEN=true`` must not remove every ``true``."""


def configuration_files(config: Path) -> dict[str, Any]:
    """By path: the values of the file and its drop-ins; of a file that is no TOML, its text and the error."""
    found: dict[str, Any] = {}
    for path in [config, *sorted(config.with_name(f"{config.stem}.d").glob("*.toml"))][:_MAX_FILES]:
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode(errors="replace")
        except OSError as error:
            found[str(path)] = {"error": str(error.strerror)}
            continue
        try:
            found[str(path)] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found[str(path)] = {"error": str(error), "text": text}
    return found


def environment_secrets(variables: Mapping[str, str]) -> set[str]:
    """Values of environment variables whose name, or whose form, says that they are secret."""
    secret = (name for name in variables if is_secret_key(name) and name not in _FOLDERS)
    found = {variables[name] for name in secret if len(variables[name]) >= _MIN_SECRET}
    return found | secret_values(list(variables.values()))


def private_key_lines(files: Iterable[Path]) -> set[str]:
    """The lines of private keys in PEM files; of a certificate beside a key none."""
    found: set[str] = set()
    for path in files:
        inside = False
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(_MAX_BYTES).decode(errors="replace").splitlines():
                inside = ("BEGIN" in line and "PRIVATE KEY" in line) or (inside and "-----END" not in line)
                if inside and not line.startswith("-----"):
                    found.add(line.strip())
    return found - {""}
