"""A device's update as the vector that it masks: folded alone, by the method's server half."""

import asyncio
from typing import Any, cast

from edge_agent.training.model_blobs import ModelBlobs
from models import registry
from models.aggregation.masked_sums import layout_of, vector_of
from models.contract import Blobs, RoutedServer, Update
from models.privacy.clipping import check_clipped
from protocol.frames.frame import decode_frame, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Offer
from protocol.secure_aggregation.ring import Words
from protocol.tasks.task import Task


async def fetched_vector(
    blobs: ModelBlobs, offer: Offer, task: Task, frame: bytes
) -> tuple[Words, dict[str, Any] | None]:
    """:func:`secure_vector` of an update that answers an offer; fetches the blobs that are not here yet.

    Returns:
        The vector, and of a routed method what determines this device's bundle.

    Raises:
        Transient: a blob was not here in time.
        Refused, Misconfigured: as :func:`secure_vector`.
    """
    model = await blobs.fetch_model(offer)
    vector_N = await asyncio.to_thread(secure_vector, task, offer.round, model, frame)
    return vector_N, await asyncio.to_thread(_route, task, frame)


def _route(task: Task, frame: bytes) -> dict[str, Any] | None:
    spec = registry.method(task.method)
    if not spec.routed:
        return None
    header, _ = open_frame(frame, UpdateHeader)
    return cast("RoutedServer", spec.server()).serving_message(header.extra)


def secure_vector(task: Task, round_: int, model: Blobs, frame: bytes) -> Words:
    """The vector of an update.

    Args:
        task: with ``secure_aggregation``.
        round_: of the update.
        model: all blobs of the version that it starts from: the shapes of what this device lacks, too.
        frame: of the rounded update; it never leaves the device.

    Raises:
        Refused: the update is none that a coordinator would take, or does not fit the task's numbers; with
            ``[privacy]`` also one beyond the clip, which the noise does not cover.
        Misconfigured: the method's fold is not a sum.
    """
    options, server = task.secure_aggregation, registry.method(task.method).server()
    if options is None:
        raise ValueError("the task has no secure rounds (a bug)")
    update = Update(*decode_frame(frame, UpdateHeader))
    server.check(task, model, update)
    check_clipped(task.privacy, update)
    fold = server.open(task, round_, model)
    fold.fold(update)
    return vector_of(fold, layout_of(fold, noisy=task.privacy is not None), options)
