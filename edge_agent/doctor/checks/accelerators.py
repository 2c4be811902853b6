"""Accelerators: whether providers find their hardware, and what a running agent does with them.

Code of packages is imported by a model's process, as in the agent (``inference.providers.catalog``).
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import MIB, Finding, ok, warn
from edge_agent.inference.providers.catalog import Accelerator, find_accelerators
from edge_agent.inference.providers.engine_cache import EngineCache
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.status.status_file import read
from protocol.errors import Transient

_HARDWARE = "is the driver loaded, and may the service see the device? See docs/accelerators.md"
_PACKAGE = "install that wheel, or write what lichen task package NAME prints as [[infer.packages]]"


@dataclass(frozen=True)
class AcceleratorFacts:
    """Attributes: ``accelerators``; ``engines``: their bytes, by folder; ``status``: of the running agent."""

    accelerators: tuple[Accelerator, ...] = ()
    engines: tuple[tuple[Path, int], ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)


def probe(settings: AgentSettings) -> AcceleratorFacts:
    """Ask each provider for its hardware, in a process of its own."""
    if not settings.infer.enabled:
        return AcceleratorFacts()
    engines = EngineCache(settings.cache_dir / "engines", settings.infer.engine_bytes).engines()
    return AcceleratorFacts(asyncio.run(_look(settings)), tuple(engines), _status(settings))


async def _look(settings: AgentSettings) -> tuple[Accelerator, ...]:
    zygote = ZygoteClient(settings.log)
    try:
        ready = await zygote.ready()
        return () if ready.why else await find_accelerators(zygote, ready, settings.infer)
    except Transient:  # the check of imports says why no process can be started
        return ()
    finally:
        await zygote.aclose()


def _status(settings: AgentSettings) -> Mapping[str, Any]:
    try:
        alive, found = read(settings)
    except (OSError, ValueError):
        return {}
    return found if alive else {}


def judge(found: AcceleratorFacts, settings: AgentSettings) -> list[Finding]:
    """One finding for each provider, one for the compiled models, one for what runs now."""
    return [*map(_judged, found.accelerators), *_engines(found, settings), *_running(found)]


def _judged(one: Accelerator) -> Finding:
    check, package = "accelerators.providers", one.provider.package
    name = one.provider.name if package is None else f"{one.provider.name} of package {package.name}"
    if one.why:
        is_package = one.why.startswith("infer.packages")
        return warn(check, f"{name} is not used: {one.why}", _PACKAGE if is_package else _HARDWARE)
    versions = ", ".join(f"{key} {value}" for key, value in one.versions)
    return ok(check, f"{name} may run models on {one.device or 'its device'}{versions and f' ({versions})'}")


def _engines(found: AcceleratorFacts, settings: AgentSettings) -> Iterator[Finding]:
    if found.engines:
        used, most = sum(size for _, size in found.engines), settings.infer.engine_bytes
        words = f"{len(found.engines)} compiled models, {used / MIB:.1f} of {most / MIB:.0f} MiB"
        yield ok("accelerators.engines", words)


def _running(found: AcceleratorFacts) -> Iterator[Finding]:
    about, choice = found.status.get("accelerators") or {}, found.status.get("model_choice") or {}
    if not found.accelerators or not choice:
        return
    figures = (
        f"{about.get('engine_hits', 0)} compiled models found, {about.get('engines_compiled', 0)} compiled, "
        f"the last one in {about.get('compile_s', 0)} s"
    )
    why = choice.get("why") or "nothing else was tried"
    yield ok("accelerators.choice", f"the model runs on {choice.get('provider')}: {why}; {figures}")
