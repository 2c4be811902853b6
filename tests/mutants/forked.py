"""Runs pytest in a forked child on a copy of the tree.

The parent imports third-party libraries once (torch alone takes seconds), but no package of this
repository. So a child starts fast, and imports our packages, one module of them mutated, from the copy.
"""

import gc
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

_PRELOADED = (
    "cbor2",
    "hypothesis",
    "numpy",
    "pydantic",
    "pytest_asyncio",
    "pytest_timeout",
    "sqlalchemy",
    "structlog",
    "torch",
)
_LOOK_S = 0.02


@dataclass(frozen=True)
class Limits:
    """What one run of pytest may take: processor time of the child itself, and time by the clock."""

    cpu_s: int
    wall_s: float


@dataclass(frozen=True)
class Ended:
    """How a run ended: `code` as pytest gives it, or None if a limit was reached."""

    code: int | None
    cpu_s: float


def preload() -> None:
    """Import what every child would import for itself."""
    for name in ("pytest", *_PRELOADED):
        importlib.import_module(name)
    gc.freeze()  # a child's garbage collector need not walk all of it


def run(tree: Path, arguments: list[str], plugin: object, log: Path, limits: Limits) -> Ended:
    """Run pytest in a child, in `tree`, with its output in `log`; then end what the tests started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        _in_child(tree, arguments, plugin, log, limits)
    until = time.monotonic() + limits.wall_s
    status = None
    while status is None and time.monotonic() < until:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
        time.sleep(_LOOK_S)
    _kill_group(child)
    if status is None:
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None, cpu_s)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _in_child(tree: Path, arguments: list[str], plugin: object, log: Path, limits: Limits) -> None:
    code = 1
    try:
        os.setpgrp()
        used = resource.getrusage(resource.RUSAGE_SELF)
        at_most = int(used.ru_utime + used.ru_stime) + limits.cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (at_most, at_most + 5))
        with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *(entry for entry in sys.path[1:] if entry not in ("", str(Path.cwd())))]
        code = _pytest(arguments, plugin)
    except BaseException:  # noqa: BLE001 -- the parent reads it in the log; nothing may leave a forked child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pytest(arguments: list[str], plugin: object) -> int:
    import pytest  # noqa: PLC0415 -- loaded by preload(), not by whoever reads this module's names
    from hypothesis import Phase, settings  # noqa: PLC0415

    # A failing example need not be made small, and no example is remembered for the next mutant.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, database=None, derandomize=True, phases=phases)
    return int(pytest.main([*arguments, "--hypothesis-profile=mutants"], plugins=[plugin]))
