"""Whether the libraries work here: each is imported and tried in a child process, as a wheel may crash."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import Finding, fail, ok, warn
from runtime.process import time_limit
from runtime.process.worker import status_words

TIMEOUT_S: Final = 60.0
"""torch takes half a minute on a slow SD card."""
_BASE: Final = "numpy, cbor2, paho.mqtt.client, psutil, pydantic, pydantic_settings, structlog"
_TRIALS: Final = {
    "base": f"import {_BASE}; numpy.ones((64, 64), numpy.float32) @ numpy.ones((64, 64), numpy.float32)",
    "cryptography": (
        "from cryptography.hazmat.primitives.asymmetric import ec; ec.generate_private_key(ec.SECP256R1())"
    ),
    "uvloop": "import uvloop; uvloop.new_event_loop().close()",
    "onnxruntime": "import onnxruntime; onnxruntime.get_available_providers()",
    "torch": (
        "import torch; x = torch.ones(2, 3, 32, requires_grad=True); "
        "torch.nn.Conv1d(3, 8, 5)(x).sum().backward(); torch.nn.Linear(32, 4)(x)"
    ),
}
"""Programs that show that a library works, beyond its import."""


@dataclass(frozen=True)
class Imported:
    """Result of a trial.

    Attributes:
        name: of :data:`_TRIALS`.
        wanted: by the configuration.
        status: exit status; negative: a signal; None: it took longer than :data:`TIMEOUT_S`.
        said: the end of its output.
    """

    name: str
    wanted: bool
    status: int | None
    said: str = ""


_LACKING: Final = {
    "base": "install lichen into its virtual environment again (install.sh, or pip install lichen)",
    "cryptography": "pip install cryptography; a device enrols and renews its certificate with it",
    "uvloop": "pip install uvloop; without it the agent runs on asyncio's own loop, a little slower",
    "onnxruntime": "pip install 'lichen[infer]'; or infer.enabled = false, without the role prototype",
    "torch": 'pip install \'lichen[train]\' (on a small device roles = ["observe", "prototype"] needs none)',
}


def names(settings: AgentSettings | None) -> dict[str, bool]:
    """Which libraries to try, and whether the configuration wants them."""
    if settings is None:
        return {"base": True, "cryptography": True, "uvloop": False, "onnxruntime": False}
    infers = settings.infer.enabled or "prototype" in settings.roles
    trains = "train" in settings.roles and settings.learn.module == "models.worker"
    found = {"base": True, "cryptography": True, "uvloop": False}
    return found | ({"onnxruntime": True} if infers else {}) | ({"torch": True} if trains else {})


def probe(wanted: dict[str, bool]) -> list[Imported]:
    """Try each library."""
    found = []
    for name, is_wanted in wanted.items():
        status, said = time_limit.child(_TRIALS[name], TIMEOUT_S)
        found.append(Imported(name, is_wanted, status, said))
    return found


def judge(trials: Iterable[Imported]) -> list[Finding]:
    """One finding for each library."""
    return [_judged(trial) for trial in trials]


def _judged(trial: Imported) -> Finding:
    check, name = f"imports.{trial.name}", "what lichen needs" if trial.name == "base" else trial.name
    if trial.status == 0:
        return ok(check, f"{name} works")
    if trial.status is None:
        words = f"{name} was not imported in {TIMEOUT_S:g} s"
        return warn(check, words, "see whether the machine is busy or its card fails (dmesg), and try again")
    if trial.status < 0:
        return fail(check, f"{name} {_killed(trial.status)}", _after_signal(trial))
    last = trial.said.strip().splitlines()[-1][:300] if trial.said.strip() else "it said nothing"
    if "ModuleNotFoundError" in last:
        return _missing(trial, check, last.rpartition("'")[0].rpartition("'")[2] or name)
    words = f"{name} cannot be used: {last}"
    return fail(check, words, f"install it again: {_LACKING[trial.name]}")


def _missing(trial: Imported, check: str, module: str) -> Finding:
    words, todo = f"{module} is not installed", _LACKING[trial.name]
    if not trial.wanted:
        return ok(check, f"{words}, and nothing here needs it")
    return fail(check, words, todo) if trial.name in ("base", "cryptography") else warn(check, words, todo)


def _killed(status: int) -> str:
    if -status == signal.SIGILL:
        return "dies with SIGILL: this wheel uses instructions that the processor lacks"
    return status_words(status)


def _after_signal(trial: Imported) -> str:
    if trial.status == -signal.SIGKILL:
        return "see dmesg: out of memory? Give the machine swap, or leave out the role that needs it"
    package = f"one of {_BASE} (numpy first)" if trial.name == "base" else trial.name
    todo = f"install another version of {package}, an older one first"
    if trial.name == "torch":  # the extra train names one version
        return f"{todo}; see dmesg"
    pin = "numpy" if trial.name == "base" else trial.name
    return f"{todo}: write {pin}<VERSION into /etc/lichen/constraints.txt and run install.sh again"
