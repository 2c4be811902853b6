"""Source trees of releases: today's, those of ``releases.toml``, and a made-up next one."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.storage import schema

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "runtime", "models", "export", "edge_agent", "coordinator", "lichen")
RELEASES = Path(__file__).parent / "releases.toml"


@dataclass(frozen=True)
class Tree:
    """The source of one release, and the interpreter that has its dependencies."""

    name: str
    folder: Path
    python: str = sys.executable

    def command(self, *words: str) -> list[str]:
        """``lichen`` of this release."""
        return [self.python, "-P", "-m", "lichen", *words]

    @property
    def environment(self) -> dict[str, str]:
        """In which its modules, and no others, are found."""
        return {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words: str, status: int = 0) -> str:
        """A command of this release that ends; what it wrote, of one that fails its errors."""
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr if status else done.stdout


def today() -> Tree:
    """What is tested."""
    return Tree("today", ROOT)


@dataclass(frozen=True)
class Release:
    """One entry of ``releases.toml``."""

    name: str
    commit: str
    python: str = field(default=sys.executable)


def released() -> list[Release]:
    """All of ``releases.toml``."""
    return [Release(**entry) for entry in tomllib.loads(RELEASES.read_text())["release"]]


def checked_out(release: Release, into: Path) -> Tree:
    """Its tree, by ``git archive``; where there is no history the test is skipped, in CI it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", release.commit, "pyproject.toml", *PACKAGES],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        words = (
            f"release {release.name} ({release.commit}) is not in this checkout's history: {done.stderr!r}"
        )
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(f"SKIPPED LOUDLY: {words}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
    if release.python == sys.executable:
        theirs, ours = (_dependencies(folder / "pyproject.toml") for folder in (into, ROOT))
        assert theirs == ours, (
            f"release {release.name} has other dependencies: give its python in releases.toml"
        )
    return Tree(release.name, into, release.python)


def _dependencies(file: Path) -> object:
    project = tomllib.loads(file.read_text())["project"]
    return project["dependencies"], project["optional-dependencies"]


def made_up(into: Path, *, readable_from: int = schema.READABLE_FROM) -> Tree:
    """A next release: today's tree and what a release may add, of each kind one.

    Args:
        into: where to.
        readable_from: which tables a release must know to use its database.
    """
    skipped = shutil.ignore_patterns("__pycache__", "bench", "demo", "*.so")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, into / package, ignore=skipped if package == "lichen" else None)
    changes = [*_CHANGES, ("coordinator/storage/schema.py", *_readable(readable_from))]
    for file, old, new in changes:
        text = (into / file).read_text()
        assert text.count(old) == 1, f"{file} has changed: mend the made-up release ({old!r})"
        (into / file).write_text(text.replace(old, new))
    return Tree("next", into)


def _readable(version: int) -> tuple[str, str]:
    return f"READABLE_FROM = {schema.READABLE_FROM}\n", f"READABLE_FROM = {version}\n"


_SEED = "    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0\n"
_KNOWN = '        "graph": "0.1.0",\n'
_FOR_EACH = "    for modality in task.modalities:\n"
_ROLES = (
    "return tuple(role for role in settings.roles if role not in off and not _why_not(role, settings, task))"
)
_VERSION = '    version: Label = "0"\n'
_GREETS = "        await self._send(self.state())\n"
_GREETING = """        topic = device_topic(self.settings.fleet, self.settings.device, Kind.METRIC)
        await self.link.publish(topic, b'{"kind":"greeting","words":"hello"}')
        await self.link.publish(topic.replace("metric", "greeting"), b"hello")
"""
_CHECKS = "        check_header(self._task, device, header, masked=self._secure is not None)\n"
_WEIRD = """        if device == "d1" and not hasattr(self, "weird"):
            self.weird = "once"
            raise Refused(Reason.TOO_WEIRD, "this device is too weird for the next release")
"""
_COUNTED = "        self.accepted += 1\n"
_GREETED = """        self.enqueue(device, Kind.CMD, Greeting(words="hello"))
        self.enqueue(device, Kind.CMD, Command(command="dance"))
"""
_FETCH = "class Fetch(Wire):\n"
_GREETING_KIND = """class Greeting(Wire):
    kind: Literal["greeting"] = "greeting"
    words: Label


"""
_TROUBLE = '    Column("trouble", String, nullable=False, default=""),\n)\n'
_MOOD = '    Column("mood", String, nullable=False, default="good", server_default="good"),\n)\n'
_NO_STEPS = "    **dict.fromkeys(range(3, VERSION), ()),\n"
_STEP = "ALTER TABLE versions ADD COLUMN mood VARCHAR NOT NULL DEFAULT 'good'"
_TAPER = '    if task.taper > 0.5:\n        names.add("taper")\n'
_ONCE = "    failures: int = 0\n"
_CHANGES: list[tuple[str, str, str]] = [
    # a key of the task that a device may leave aside, up to a value from which on it may not
    ("protocol/tasks/task.py", _SEED, f"{_SEED}    taper: float = 0.0\n"),
    ("protocol/tasks/features.py", _KNOWN, f'{_KNOWN}        "taper": "0.2.0",\n'),
    ("protocol/tasks/features.py", _FOR_EACH, _TAPER + _FOR_EACH),
    # a role, and a key of the state
    ("protocol/messages.py", '"prototype", "train"]\n', '"prototype", "train", "dance"]\n'),
    ("edge_agent/tasks/roles.py", _ROLES, f'{_ROLES.replace("tuple(", "(*tuple(")}, "dance")'),
    ("protocol/messages.py", _VERSION, f'{_VERSION}    mood: Label = "good"\n'),
    (
        "edge_agent/messaging/state_reporter.py",
        "version=_version(),\n",
        'version=_version(),\n            mood="fine",\n',
    ),
    # a reason to refuse, said once
    ("protocol/errors.py", '    OUTLIER = "outlier"', '    TOO_WEIRD = "too_weird"\n    OUTLIER = "outlier"'),
    ("coordinator/ingest/verifier.py", _CHECKS, _CHECKS + _WEIRD),
    # kinds of messages, topics and commands, both ways
    ("protocol/messages.py", _FETCH, _GREETING_KIND + _FETCH),
    ("edge_agent/messaging/state_reporter.py", _GREETS, _GREETS + _GREETING),
    ("coordinator/messaging/receipts.py", "import Command, Receipt\n", "import Command, Greeting, Receipt\n"),
    ("coordinator/messaging/receipts.py", _COUNTED, _COUNTED + _GREETED),
    # a step of the tables, and a key of what the round machine remembers
    (
        "coordinator/storage/schema.py",
        f"\nVERSION = {schema.VERSION}\n",
        f"\nVERSION = {schema.VERSION + 1}\n",
    ),
    (
        "coordinator/storage/schema.py",
        _NO_STEPS,
        f'{_NO_STEPS}    {schema.VERSION}: ("{_STEP}",),\n',
    ),
    ("coordinator/storage/schema.py", _TROUBLE, _TROUBLE.removesuffix(")\n") + _MOOD),
    ("coordinator/round_machine/events.py", _ONCE, f'{_ONCE}    mood: str = "good"\n'),
]
