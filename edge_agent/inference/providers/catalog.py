"""Finds the providers of this device: those of ONNX Runtime, and those of packages that its owner allows.

The agent reads only files and metadata of packages. Their code is imported by a model's process, which is
asked for the hardware.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_agent.config.agent import InferSettings
from edge_agent.config.providers import ProviderPackage
from edge_agent.inference.onnx_models.exit_words import exit_words
from edge_agent.inference.providers.kinds import GROUP, Provider
from edge_agent.inference.serving.host import ChannelClosed
from edge_agent.inference.serving.model_server import LOOK
from edge_agent.inference.serving.served_model import require_answer
from edge_agent.inference.serving.variants.choice import permitted
from edge_agent.inference.serving.zygote_client import Ready, ZygoteClient
from models import packages
from protocol.errors import Misconfigured, Refused

_LOOK_S: Final = 60.0
"""Seconds to import a package and to find the hardware."""
_WORDS: Final = 300


@dataclass(frozen=True)
class Accelerator:
    """A provider, and whether it can run models here.

    Attributes:
        provider: name, package and options.
        why: why it cannot be used; empty if it can.
        device: the accelerator, as its driver names it.
        versions: of driver and compiler.
        compiles: whether its compiled models are kept.
    """

    provider: Provider
    why: str = ""
    device: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    compiles: bool = False

    @property
    def origin(self) -> str:
        """Name, version and hash of its package; empty if ONNX Runtime has it."""
        package = self.provider.package
        return "" if package is None else f"{package.name} {package.version} {package.sha256}"

    def summary(self) -> dict[str, Any]:
        """For ``status.json``."""
        package = self.provider.package
        return {
            "provider": self.provider.name,
            "package": None if package is None else f"{package.name} {package.version}",
            "device": self.device,
            "versions": dict(self.versions),
            "why": self.why,
        }


async def find_accelerators(
    zygote: ZygoteClient, ready: Ready, settings: InferSettings
) -> tuple[Accelerator, ...]:
    """All providers beside the CPU that may run models here; one that hangs costs a minute.

    Args:
        zygote: starts the processes that look for the hardware.
        ready: what ONNX Runtime has.
        settings: what the owner permits.

    Raises:
        Transient: no process can be started.
    """
    offered = await asyncio.to_thread(lambda: list(_offered(settings)))
    names = [*ready.providers, *(one.provider.name for one in offered)]
    may = set(permitted(settings, names))
    installed = [Accelerator(_provider(settings, name)) for name in ready.providers if name in may]
    found: dict[str, Accelerator] = {}
    for one in (*installed, *(one for one in offered if one.why or one.provider.name in may)):
        name = one.provider.name
        if name in found:
            other = found[name].origin or "ONNX Runtime"
            found[name] = replace(one, why=f"{other} has a provider {name!r}, too")
        else:
            found[name] = one if one.why else await _ask(zygote, one.provider)
    return tuple(found.values())


def usable(found: Sequence[Accelerator]) -> list[str]:
    """Names of the providers that can be used."""
    return [one.provider.name for one in found if not one.why]


def _provider(settings: InferSettings, name: str, package: ProviderPackage | None = None) -> Provider:
    return Provider(name, package, tuple(sorted(settings.options.get(name, {}).items())))


def _offered(settings: InferSettings) -> Iterator[Accelerator]:
    """The providers of allowed packages; reads files, and imports nothing."""
    for package in settings.packages:
        where = f"infer.packages names package {package.name} {package.version}"
        try:
            offers = packages.require_installed(package, where).offers
        except Misconfigured as error:
            yield Accelerator(_provider(settings, package.name, package), str(error))
            continue
        names = sorted(name for group, name in offers if group == GROUP)
        for name in names:
            yield Accelerator(_provider(settings, name, package))
        if not names:
            why = f"{where}, which has no entry point of {GROUP!r}"
            yield Accelerator(_provider(settings, package.name, package), why)


async def _ask(zygote: ZygoteClient, provider: Provider) -> Accelerator:
    """Ask a process of its own for the hardware of one provider."""
    pid, channel = await zygote.channel()
    try:
        answer, _ = await channel.ask({"op": LOOK, **provider.header()}, {}, _LOOK_S)
        require_answer(answer)
    except ChannelClosed as error:
        status = await zygote.exit_status(pid)
        hangs = "not answered" in str(error)
        ended = "" if status is None or hangs else exit_words(status, "")
        return Accelerator(provider, f"looking for its hardware failed: {ended or error}"[:_WORDS])
    except Refused as error:
        return Accelerator(provider, error.detail[:_WORDS])
    finally:
        channel.close()
        zygote.end(pid)
    versions = tuple((str(name), str(value)) for name, value in answer["versions"])
    return Accelerator(provider, "", str(answer["device"]), versions, bool(answer["compiles"]))
