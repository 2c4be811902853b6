"""Whether the bucket answers, for ``lichen coordinator status --why``."""

import asyncio
import json
from contextlib import suppress
from typing import Final

import structlog

from coordinator.objects.contract import ObjectStore
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.waits import Wait

log = structlog.get_logger(__name__)

META: Final = "bucket"
_POLL_S: Final = 0.5
_PROBE_S: Final = 15.0
"""While the bucket fails, it is tried so often, whoever else uses it."""


async def watch(bucket: ObjectStore, store: Database, clock: Clock) -> None:
    """Record for ever since when the bucket fails, and why.

    Args:
        bucket: the shared store.
        store: the database.
        clock: the time.
    """
    recorded: tuple[float, str] | None = None
    probe_at = clock.now() + _PROBE_S
    await _record(store, None)
    while True:
        await clock.sleep(_POLL_S)
        trouble = bucket.trouble
        if trouble is not None and clock.now() >= probe_at:
            probe_at = clock.now() + _PROBE_S
            with suppress(LichenError):
                await asyncio.to_thread(bucket.check)
            trouble = bucket.trouble
        if trouble != recorded and await _record(store, trouble):
            recorded = trouble
            if trouble is None:
                log.info("bucket_answers")
            else:
                log.warning("bucket_fails", why=trouble[1])


async def _record(store: Database, trouble: tuple[float, str] | None) -> bool:
    try:
        await asyncio.to_thread(store.put_meta, {META: json.dumps(trouble)})
    except LichenError:  # the database fails, too
        return False
    return True


def waits(store: Database) -> list[Wait]:
    """The wait for the bucket: meanwhile no update gets a receipt, and devices keep theirs."""
    trouble = json.loads(store.get_meta(META) or "null")
    if trouble is None:
        return []
    since, words = trouble
    return [Wait("bucket", words, float(since), None, "until it answers; devices keep their updates")]
