"""The accelerators of this device: which providers run models here, and their compiled models.

The agent reads only files and metadata of packages. Their code is imported by models' processes, which are
asked for the hardware, and which compile.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import InferSettings
from edge_agent.inference.providers.catalog import Accelerator, find_accelerators
from edge_agent.inference.providers.engine_cache import CompiledModel, EngineCache, EngineKey, size_of
from edge_agent.inference.providers.kinds import MAX_ROWS
from edge_agent.inference.serving.served_kinds import ServedWindows
from edge_agent.inference.serving.served_model import ModelOptions
from edge_agent.inference.serving.zygote_client import Ready, ZygoteClient
from protocol.bundle import BundleManifest
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.clock import Clock
from runtime.waits import StatusPart, Wait, span

_log = structlog.get_logger(__name__)
_WATCH_S: Final = 1.0
_TOLD_EVERY_S: Final = 30.0
_ATTEMPTS: Final = 2
"""Failed compilations in a row after which a provider is left out until the agent starts again."""
_WORDS: Final = 300


@dataclass
class _Compiling:
    provider: str
    version: int
    since: float
    size: int = 0


class Accelerators(StatusPart):
    """Finds providers, and prepares models for them.

    Args:
        settings: which are permitted, and limits.
        folder: ``cache_dir/engines``; None: no compiled model is kept.
        clock: of progress.
    """

    def __init__(self, settings: InferSettings, folder: Path | None, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._cache = None if folder is None else EngineCache(folder, settings.engine_bytes)
        self._found: dict[str, Accelerator] = {}
        self._version = ""
        self._failed: Counter[str] = Counter()
        self._last_failure: dict[str, str] = {}
        self._compiling: _Compiling | None = None
        self._one_at_a_time = asyncio.Lock()
        self._hits = self._compiled = 0
        self._compile_s = 0.0
        self._engines = (0, 0)
        """Number and bytes of the engines."""

    async def look(self, zygote: ZygoteClient, ready: Ready) -> tuple[Accelerator, ...]:
        """Find all accelerators that may be used, each in a process of its own.

        Raises:
            Transient: no process can be started.
        """
        found = await find_accelerators(zygote, ready, self._settings)
        self._version = ready.version
        self._found = {one.provider.name: one for one in found}
        for one in found:
            if one.why:
                _log.warning("provider_not_used", provider=one.provider.name, why=one.why)
        return found

    async def prepare(
        self, zygote: ZygoteClient, folder: Path, manifest: BundleManifest, options: ModelOptions
    ) -> ModelOptions:
        """How to open a model: with its engine, which is compiled first if there is none.

        Args:
            zygote: starts the process that compiles.
            folder: an unpacked bundle.
            manifest: of it.
            options: how the model is to be opened.

        Raises:
            Refused: the provider does not compile it in time, its process ends, or nothing can be kept.
        """
        found = self._found.get(options.provider.name)
        if found is None or options.provider.on_cpu:
            return options
        options = replace(options, provider=found.provider)
        if not found.compiles or self._cache is None:
            return options
        key = self._key(found, manifest.files[options.file].digest, options.threads)
        async with self._one_at_a_time:
            try:
                engine = await self._engine(zygote, folder, manifest, options, key)
                kept = await asyncio.to_thread(self._cache.engines)
            except (Misconfigured, Transient) as error:
                raise Refused(Reason.FULL, f"the compiled model cannot be kept: {error}") from None
        self._engines = len(kept), sum(size for _, size in kept)
        if not engine.size:  # it wrote nothing, so it compiles at each start
            return replace(options, open_timeout_s=self._settings.compile_timeout_s)
        return replace(options, provider=replace(found.provider, engine=engine.folder))

    def conditions(self) -> list[list[Any]]:
        """Those of a choice among variants: what is usable here, in a form that JSON keeps."""
        usable = [one for one in self._found.values() if not one.why]
        return [
            [
                one.provider.name,
                one.origin,
                one.device,
                list(map(list, one.versions)),
                list(map(list, one.provider.options)),
            ]
            for one in usable
        ]

    def status(self) -> dict[str, Any]:
        """Providers, and figures of their compiled models."""
        now, cache = self._compiling, self._cache
        return {
            "accelerators": {
                "providers": [one.summary() for one in self._found.values()],
                "engines": self._engines[0],
                "engine_bytes": self._engines[1],
                "engine_hits": self._hits,
                "engines_compiled": self._compiled,
                "engines_removed": 0 if cache is None else cache.removed,
                "compile_s": round(self._compile_s, 1),
                "compiling": None
                if now is None
                else {
                    "provider": now.provider,
                    "version": now.version,
                    "seconds": round(self._clock.now() - now.since, 1),
                    "bytes": now.size,
                    "at_most_s": self._settings.compile_timeout_s,
                },
            }
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for a compiler."""
        if (now := self._compiling) is not None:
            began = self._clock.wall() - (self._clock.now() - now.since)
            words = f"{now.provider} compiles version {now.version}; {now.size} bytes are written"
            until = began + self._settings.compile_timeout_s
            yield Wait("compiling", words, began, until, "another provider runs it")

    def _key(self, found: Accelerator, model: str, threads: int) -> EngineKey:
        versions = (("onnxruntime", self._version), *found.versions)
        name, options = found.provider.name, found.provider.options
        return EngineKey(model, name, found.origin, found.device, versions, options, threads, MAX_ROWS)

    async def _engine(
        self,
        zygote: ZygoteClient,
        folder: Path,
        manifest: BundleManifest,
        options: ModelOptions,
        key: EngineKey,
    ) -> CompiledModel:
        cache, name = self._cache, options.provider.name
        if cache is None:
            raise AssertionError("without a cache nothing is compiled")
        if (found := await asyncio.to_thread(cache.find, key)) is not None:
            self._hits += bool(found.size)
            return found
        if self._failed[name] >= _ATTEMPTS:
            raise Refused(
                Reason.MALFORMED,
                f"{name} is left out until the agent starts again: {_ATTEMPTS} compilations failed in a row, "
                f"the last one because {self._last_failure[name]}",
            )
        part = await asyncio.to_thread(cache.begin, key)
        began = self._clock.now()
        try:
            await self._compile(zygote, folder, manifest, options, part)
            took_s = self._clock.now() - began
            engine = await asyncio.to_thread(cache.keep, part, key, took_s)
            if engine.size and (why := await self._not_read(zygote, folder, manifest, options, engine)):
                _log.warning("engine_not_read", provider=name, detail="it compiles at each start", why=why)
                engine = await asyncio.to_thread(
                    cache.keep, await asyncio.to_thread(cache.begin, key), key, took_s
                )
        except Refused as error:
            self._failed[name] += 1
            self._last_failure[name] = error.detail[:_WORDS]
            await asyncio.to_thread(cache.abandon, part)
            took = span(self._clock.now() - began)
            raise Refused(error.reason, f"compiling for {name} failed after {took}: {error.detail}") from None
        except (Misconfigured, Transient):
            await asyncio.to_thread(cache.abandon, part)
            raise
        self._failed[name] = 0
        self._compiled += 1
        self._compile_s = took_s
        _log.info("engine_compiled", provider=name, version=manifest.version, seconds=round(took_s, 1))
        return engine

    async def _compile(
        self, zygote: ZygoteClient, folder: Path, manifest: BundleManifest, options: ModelOptions, part: Path
    ) -> None:
        """Compile in a process that ends afterwards, so that nobody writes any more. Raises Refused."""
        how = replace(
            options,
            provider=replace(options.provider, engine=part, compiling=True),
            private=None,
            open_timeout_s=self._settings.compile_timeout_s,
        )
        model = ServedWindows(zygote, folder, manifest, how)
        now = self._compiling = _Compiling(options.provider.name, manifest.version, self._clock.now())
        watch = asyncio.create_task(self._watch(model, part, now))
        try:
            await model.start()
        except Refused:
            if now.size > self._settings.engine_bytes:
                words = f"it wrote {now.size} bytes, infer.engine_bytes is {self._settings.engine_bytes}"
                raise Refused(Reason.TOO_LARGE, words) from None
            raise
        finally:
            self._compiling = None
            watch.cancel()
            await model.ended()

    async def _not_read(
        self,
        zygote: ZygoteClient,
        folder: Path,
        manifest: BundleManifest,
        options: ModelOptions,
        engine: CompiledModel,
    ) -> str:
        """Why a provider cannot read what it compiled, if it may not write there; empty if it can."""
        how = replace(options, provider=replace(options.provider, engine=engine.folder), private=None)
        model = ServedWindows(zygote, folder, manifest, how)
        try:
            await model.start()
        except Refused as error:
            return error.detail[:_WORDS]
        finally:
            await model.ended()
        return ""

    async def _watch(self, model: ServedWindows, part: Path, now: _Compiling) -> None:
        """Follow what is written; end a compiler that writes too much."""
        told = now.since
        while True:
            await self._clock.sleep(_WATCH_S)
            now.size = await asyncio.to_thread(size_of, part)
            if now.size > self._settings.engine_bytes:
                model.close()
                return
            if self._clock.now() - told >= _TOLD_EVERY_S:
                told = self._clock.now()
                seconds = round(told - now.since)
                _log.info("engine_compiling", provider=now.provider, seconds=seconds, bytes=now.size)
