"""What devices shall work on, signed: the task, and each round's offer.

A ``TaskAnnouncement`` and an ``Offer`` carry the text of an envelope (:mod:`protocol.trust.signing`), signed
by the
keys that the root names for ``targets``, as decisions are (:mod:`protocol.trust.decisions`); ``_type`` keeps
the
three apart. Pure.

A task is signed as it came: the digest of its text. Of an offer the parts are signed that are the same for
all devices of a round, so one signature serves all. Left out are ``closes_in_s``, which counts down, and
``seed``, which is one device's: it orders batches, and no privacy noise comes from it. A field of ``Offer``
that decides what a device does belongs into :class:`SignedOffer`.

Serials count seconds of the coordinator's clock, or one more than the last: a device goes by no task and no
offer whose serial is lower than that of the last one that it went by.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError

from protocol.base import Count, Digest, Name, Wire
from protocol.messages import BlobRef, Offer
from protocol.tasks.announcement import (
    MAX_NEXT_ROOTS,
    MAX_SIGNED_OFFER_BYTES,
    MAX_SIGNED_TASK_BYTES,
    TaskAnnouncement,
)
from protocol.tasks.task import ModalityName
from protocol.trust.signing import Envelope, malformed

WorkKind = Literal["task", "offer"]
MAX_BYTES: Final[Mapping[WorkKind, int]] = {"task": MAX_SIGNED_TASK_BYTES, "offer": MAX_SIGNED_OFFER_BYTES}


class SignedWork(Wire):
    """What both kinds say."""

    fleet: Name
    serial: Count
    root: Count
    """The version of the root whose key signed it."""


class SignedTask(SignedWork):
    """The task of a fleet."""

    type: Literal["task"] = Field(alias="_type")
    digest: Digest
    """SHA-256 of ``TaskAnnouncement.task``, in UTF-8."""
    needs: Annotated[tuple[str, ...], Field(max_length=64)]
    roots: Annotated[tuple[BlobRef, ...], Field(max_length=MAX_NEXT_ROOTS)]
    """As ``Vouchers.roots``: a device that knows an older root goes to the newest before it verifies this."""

    def difference(self, announcement: TaskAnnouncement) -> str:
        """What the announcement says otherwise, in words; empty: nothing."""
        if _digest(announcement.task) != self.digest:
            return "the task is not the one that was signed"
        if announcement.needs != self.needs:
            return "needs is not what was signed"
        return ""


class SignedOffer(SignedWork):
    """The offer of a round, for all devices that are selected."""

    type: Literal["offer"] = Field(alias="_type")
    task: Name
    round: Count
    base: BlobRef
    graphs: Annotated[dict[ModalityName, BlobRef], Field(max_length=16)]
    """Of all modalities; a device is offered those that it has."""

    def difference(self, offer: Offer) -> str:
        """What the offer says otherwise, in words; empty: nothing."""
        if offer.task != self.task:
            return f"task {offer.task!r} is offered, {self.task!r} was signed"
        if offer.round != self.round:
            return f"round {offer.round} is offered, {self.round} was signed"
        if BlobRef(digest=offer.base, size=offer.base_size) != self.base:
            return f"version {offer.base[:12]} is offered, {self.base.digest[:12]} was signed"
        for name, graph in offer.graphs.items():
            if self.graphs.get(name) != graph:
                return f"the encoder model of {name} is not one that was signed"
        return ""


_S = TypeVar("_S", SignedTask, SignedOffer)


def draft_task(
    announcement: TaskAnnouncement, fleet: str, serial: int, root: int, roots: tuple[BlobRef, ...]
) -> Envelope:
    """The statement about a task, to be signed. ``root``: the version of the root whose key will sign."""
    said = {
        "digest": _digest(announcement.task),
        "needs": list(announcement.needs),
        "roots": [ref.model_dump() for ref in roots],
    }
    return _draft("task", fleet, serial, root, said)


def draft_offer(offer: Offer, graphs: Mapping[str, BlobRef], fleet: str, serial: int, root: int) -> Envelope:
    """The statement about a round's offer, to be signed.

    Args:
        offer: to any device.
        graphs: of all modalities.
        fleet: its name.
        serial: of the statement.
        root: the version of the root whose key will sign.
    """
    said = {
        "task": offer.task,
        "round": offer.round,
        "base": {"digest": offer.base, "size": offer.base_size},
        "graphs": {name: ref.model_dump() for name, ref in graphs.items()},
    }
    return _draft("offer", fleet, serial, root, said)


def _draft(kind: WorkKind, fleet: str, serial: int, root: int, said: Mapping[str, Any]) -> Envelope:
    return Envelope({"_type": kind, "fleet": fleet, "serial": serial, "root": root, **said}, ())


def read_signed(kind: type[_S], text: str) -> tuple[_S, Envelope]:
    """Parse; signatures are not looked at.

    Raises:
        Refused: MALFORMED or TOO_LARGE.
    """
    what: WorkKind = "task" if kind is SignedTask else "offer"
    envelope = Envelope.read(text.encode(errors="replace"), MAX_BYTES[what], what)
    try:
        return kind.model_validate(envelope.signed), envelope
    except ValidationError as error:
        raise malformed(what, error) from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
