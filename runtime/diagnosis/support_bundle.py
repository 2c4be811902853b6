"""Writes a support bundle: a ``tar.gz`` of small texts about one daemon, without secrets, within bounds.

Each part is made by itself: one that fails, hangs or is too large says so in its file, and the others are
there. Nothing is written but the bundle.
"""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.errors import LichenError, Misconfigured, Refused
from runtime.diagnosis.redaction import MIN_SECRET, REMOVED, redacted, redacted_values
from runtime.process.time_limit import TookTooLong, run_with_timeout
from runtime.storage.files import disk_errors

MAX_PART_BYTES: Final = 512 * 1024
PART_S: Final = 60.0
"""Limit of one part."""
MAX_S: Final = 240.0
"""Limit of all parts; those that are left say so."""
_SHOWN_ERROR: Final = 2000
_MODE: Final = 0o600
Part = Callable[[], Any]
"""Returns a text, or JSON values; may raise."""


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What was written: names and sizes of parts, and those that could not be made whole."""

    file: Path
    size: int
    parts: Mapping[str, int]
    incomplete: tuple[str, ...]


def write_bundle(file: Path, parts: Mapping[str, Part], secrets: Iterable[str]) -> BundleReport:
    """Make all parts and write the bundle, mode 0600.

    Args:
        file: the new file; one that exists is not replaced.
        parts: name of a file -> what makes its content, in order. Names that end in ``.json`` hold values.
        secrets: texts that are removed wherever they occur.

    Raises:
        Misconfigured: the file exists, or its folder denies access.
        Transient: the disk is full.
    """
    known, until = _forms(secrets), time.monotonic() + MAX_S
    with disk_errors(file):
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        except FileExistsError:
            raise Misconfigured(f"{file} exists; name a new file") from None
    sizes: dict[str, int] = {}
    incomplete: list[str] = []
    try:
        with (
            disk_errors(file),
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", filename="") as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, make in parts.items():
                data, whole = _made(name, make, known, until - time.monotonic())
                entry = tarfile.TarInfo(f"support/{name}")
                entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
                sizes[name] = len(data)
                if not whole:
                    incomplete.append(name)
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
    return BundleReport(file, file.stat().st_size, sizes, tuple(incomplete))


def _forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets, and how they look as JSON."""
    found: set[str] = set()
    for secret in secrets:
        if len(secret) < MIN_SECRET:
            continue
        found |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return tuple(sorted(found, key=len, reverse=True))


def _made(name: str, make: Part, secrets: tuple[str, ...], left_s: float) -> tuple[bytes, bool]:
    """The content of one part, and whether it is whole."""
    if left_s <= 0:
        return b"left out: the bundle took too long\n", False
    try:
        found = run_with_timeout(min(PART_S, left_s), make)
    except TookTooLong:
        return f"no answer in {min(PART_S, left_s):.0f} s: does a disk or a mount hang?\n".encode(), False
    except Exception as error:  # noqa: BLE001 - whatever is damaged: the other parts are wanted all the same
        words = error.words if isinstance(error, Refused) else str(error)
        kind = "" if isinstance(error, LichenError) else f"{type(error).__name__}: "
        return f"could not be made: {redacted(kind + words, secrets)[:_SHOWN_ERROR]}\n".encode(), False
    if name.endswith(".json"):
        text = json.dumps(redacted_values(found, secrets), indent=1, default=str, ensure_ascii=False)
        for secret in secrets:  # also in keys, and in what has just become a text
            text = text.replace(secret, REMOVED)
    else:
        text = redacted(str(found), secrets)
    data = text.encode(errors="replace")
    if len(data) <= MAX_PART_BYTES:
        return data, True
    half = MAX_PART_BYTES // 2
    left_out = f"\n[{len(data) - 2 * half} bytes left out]\n".encode()
    return data[:half] + left_out + data[-half:], False


def own_command(module: str, *args: str) -> Any:
    """What one of lichen's own commands prints, run in a process of its own: JSON values, or text.

    Args:
        module: that has the ``app``.
        args: of the command.
    """
    code = f"from {module} import app; app()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PART_S,
        check=False,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )
    out, err = (text.decode(errors="replace").strip() for text in (done.stdout, done.stderr))
    if "json" in args:
        with suppress(ValueError):
            return {"exit_status": done.returncode, "result": json.loads(out), "stderr": err}
        return {"exit_status": done.returncode, "stdout": out, "stderr": err}
    return "\n".join(filter(None, [out, err, f"exit status {done.returncode}"]))


def service_log(unit: str, files: Iterable[Path]) -> str:
    """The last log lines of a service: from journald, and the ends of files that the caller names."""
    found = [_journal(unit)]
    for path in files:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_PART_BYTES // 2))
            found.append(f"== {path}\n{file.read(MAX_PART_BYTES // 2).decode(errors='replace')}")
    return "\n".join(found)


def _journal(unit: str) -> str:
    command = ["journalctl", "--unit", unit, "--lines", "1000", "--no-pager", "--output", "short-iso"]
    where = f"the log of {unit} is where its standard error goes; by systemd: {' '.join(command[:3])}"
    try:
        done = subprocess.run(command, capture_output=True, timeout=PART_S / 2, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{where}; here it cannot be read: {error}"
    text = done.stdout.decode(errors="replace").strip()
    said = done.stderr.decode(errors="replace").strip()
    return text if text and "-- No entries --" not in text else f"{where}; there are no lines here. {said}"
