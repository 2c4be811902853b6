"""A bundle's folder -> a model that runs: its best variant here, float32 on the CPU where that fails."""

import asyncio
from pathlib import Path

import structlog

from edge_agent.config import InferSettings
from edge_agent.model import read_manifest
from edge_agent.serving.choose import REFERENCE
from edge_agent.serving.measure import Recent, choose
from edge_agent.serving.parent import Zygote
from edge_agent.serving.process import Opening
from edge_agent.serving.remote import Model, remote
from protocol.errors import Refused

_log = structlog.get_logger("edge_agent.serving")


async def started(
    zygote: Zygote, folder: Path, settings: InferSettings, private: Path | None, recent: Recent
) -> Model:
    """Start the fastest variant of a model that agrees with float32 here, and run it once.

    Args:
        zygote: makes processes.
        folder: an unpacked bundle.
        settings: say what may be taken.
        private: folder of the device's own tensors, if any.
        recent: windows to measure on.

    Raises:
        Refused: it is damaged, does not run, or its process dies of it.
        Transient: there is no process to be had.
    """
    manifest = await asyncio.to_thread(read_manifest, folder)
    plain = Opening(settings.threads, settings.timeout_s, private)
    chosen, told = await choose(zygote, folder, manifest, settings, plain, recent)
    model = remote(zygote, folder, manifest, chosen)
    model.choice = told
    try:
        await model.start()
    except Refused as error:
        if chosen == plain:
            raise
        why = f"{told['variant']} on {told['provider']} does not run any more: {error.detail}"
        _log.warning("float32 on the CPU instead", version=manifest.version, why=why)
        model = remote(zygote, folder, manifest, plain)
        model.choice = {"variant": REFERENCE.variant, "provider": REFERENCE.provider, "why": why}
        await model.start()
    return model
