"""A bundle's folder -> a running model: its best variant here, float32 on the CPU if that fails."""

import asyncio
from pathlib import Path
from typing import Any

import structlog

from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.window_model import read_manifest
from edge_agent.inference.providers.accelerators import Accelerators
from edge_agent.inference.serving.in_process import Host, InProcessHost
from edge_agent.inference.serving.served_kinds import Model, served
from edge_agent.inference.serving.served_model import ModelOptions
from edge_agent.inference.serving.variants.benchmark import RecentWindows, choose
from edge_agent.inference.serving.variants.choice import REFERENCE
from edge_agent.inference.serving.zygote_client import ZygoteClient
from protocol.errors import Refused

_log = structlog.get_logger(__name__)


def host_of(zygote: ZygoteClient, settings: InferSettings) -> Host:
    """Where models run, by ``infer.isolation``."""
    return zygote if settings.isolation == "process" else InProcessHost()


async def start_model(  # noqa: PLR0917 - who makes processes, where it runs then, what, how, on what
    zygote: ZygoteClient,
    host: Host,
    folder: Path,
    settings: InferSettings,
    private: Path | None,
    recent: RecentWindows,
    accelerators: Accelerators,
) -> Model:
    """Start the fastest variant of a model that agrees with float32 here, and run it once.

    With ``infer.isolation = "none"`` the model first runs in a process of its own, so that a crash there does
    not crash the agent.

    Args:
        zygote: starts processes.
        host: where it runs then.
        folder: an unpacked bundle.
        settings: variants and providers allowed.
        private: folder of the device's own tensors, if any.
        recent: windows to measure on.
        accelerators: of this device; a model is compiled for one if need be.

    Raises:
        Refused: it is damaged, does not run, or crashes its process.
        Transient: no process can be started.
    """
    manifest = await asyncio.to_thread(read_manifest, folder)
    plain = ModelOptions(settings.threads, settings.timeout_s, private)
    chosen, told = await choose(zygote, folder, manifest, settings, plain, recent, accelerators)

    async def start(how: ModelOptions, words: dict[str, Any]) -> Model:
        if host is not zygote:
            tried = served(zygote, folder, manifest, how)
            await tried.start()
            tried.close()
        model = served(host, folder, manifest, how)
        model.choice = words
        await model.start()
        return model

    try:
        return await start(await accelerators.prepare(zygote, folder, manifest, chosen), told)
    except Refused as error:
        if chosen == plain:
            raise
        why = f"{told['variant']} on {told['provider']} no longer runs: {error.detail}"
        _log.warning(
            "variant_fallback", detail="float32 on the CPU is used", version=manifest.version, why=why
        )
        return await start(plain, {"variant": REFERENCE.variant, "provider": REFERENCE.provider, "why": why})
