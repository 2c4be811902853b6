"""Signed statements about the task and about each round's offer.

A ``TaskAnnouncement`` and an ``Offer`` carry the text of an envelope (:mod:`protocol.trust.signing`), signed
by the keys of the role ``targets`` in the root, like decisions (:mod:`protocol.trust.decisions`); ``_type``
separates the three. Pure.

A task is signed by the digest of its text. Of an offer all is signed but ``closes_in_s`` and
``answer_within_s``, which count down, and ``delivered``, which grows: it can only ask a device once more in a
later attempt. A field of ``Offer`` that decides what a device does belongs into :class:`SignedOffer`.

Serials are seconds of the coordinator's clock, or the last serial plus one: a device accepts no task and no
offer with a lower serial than the last accepted one.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError

from protocol.base import Count, Digest, Name, Wire
from protocol.cohort import Salt, Threshold
from protocol.messages import BlobRef, Offer
from protocol.tasks.announcement import (
    MAX_NEXT_ROOTS,
    MAX_SIGNED_OFFER_BYTES,
    MAX_SIGNED_TASK_BYTES,
    TaskAnnouncement,
)
from protocol.tasks.task import ModalityName
from protocol.topics import Namespace
from protocol.trust.signing import Envelope, malformed

WorkKind = Literal["task", "offer"]
MAX_BYTES: Final[Mapping[WorkKind, int]] = {"task": MAX_SIGNED_TASK_BYTES, "offer": MAX_SIGNED_OFFER_BYTES}


class SignedWork(Wire):
    """Fields of both kinds."""

    fleet: Namespace
    """The task's namespace in the topics: a statement for one task of a fleet is none for another."""
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
    """As ``Vouchers.roots``: a device with an older root updates it before it verifies this."""

    def difference(self, announcement: TaskAnnouncement) -> str:
        """The first difference to the announcement; empty without any."""
        if _digest(announcement.task) != self.digest:
            return "the task is not the one that was signed"
        if announcement.needs != self.needs:
            return "needs is not what was signed"
        return ""


class SignedOffer(SignedWork):
    """The offer of a round."""

    type: Literal["offer"] = Field(alias="_type")
    task: Name
    round: Count
    attempt: Count
    base: BlobRef
    salt: Salt
    below: Threshold | None = None
    members: Digest | None = None
    """SHA-256 of ``Offer.members``, in UTF-8."""
    graphs: Annotated[dict[ModalityName, BlobRef], Field(max_length=16)]
    """Encoder models of all modalities."""
    clip: float | None = None

    def difference(self, offer: Offer) -> str:
        """The first difference to the offer; empty without any."""
        if offer.task != self.task:
            return f"task {offer.task!r} is offered, {self.task!r} was signed"
        if (offer.round, offer.attempt) != (self.round, self.attempt):
            return (
                f"round {offer.round} attempt {offer.attempt} is offered, {self.round} attempt "
                f"{self.attempt} was signed"
            )
        if BlobRef(digest=offer.base, size=offer.base_size) != self.base:
            return f"version {offer.base[:12]} is offered, {self.base.digest[:12]} was signed"
        if (offer.salt, offer.below, _members(offer)) != (self.salt, self.below, self.members):
            return "the cohort of devices is not the one that was signed"
        for name, graph in offer.graphs.items():
            if self.graphs.get(name) != graph:
                return f"the encoder model of {name} is not one that was signed"
        return "" if offer.clip == self.clip else f"clip {offer.clip} is offered, {self.clip} was signed"


_S = TypeVar("_S", SignedTask, SignedOffer)


def draft_task(
    announcement: TaskAnnouncement, fleet: str, serial: int, root: int, roots: tuple[BlobRef, ...]
) -> Envelope:
    """The statement about a task, to be signed. ``root``: the version of the root whose key will sign."""
    fields = {
        "digest": _digest(announcement.task),
        "needs": list(announcement.needs),
        "roots": [ref.model_dump() for ref in roots],
    }
    return _draft("task", fleet, serial, root, fields)


def draft_offer(offer: Offer, fleet: str, serial: int, root: int) -> Envelope:
    """The statement about a round's offer, to be signed.

    Args:
        offer: the offer.
        fleet: its name.
        serial: of the statement.
        root: the version of the root whose key will sign.
    """
    fields: dict[str, Any] = {
        "task": offer.task,
        "round": offer.round,
        "attempt": offer.attempt,
        "base": {"digest": offer.base, "size": offer.base_size},
        "salt": offer.salt,
        "graphs": {name: ref.model_dump() for name, ref in offer.graphs.items()},
    }
    cohort = {"below": offer.below, "members": _members(offer), "clip": offer.clip}
    return _draft("offer", fleet, serial, root, fields | {k: v for k, v in cohort.items() if v is not None})


def _members(offer: Offer) -> str | None:
    return None if offer.members is None else _digest(offer.members)


def _draft(kind: WorkKind, fleet: str, serial: int, root: int, fields: Mapping[str, Any]) -> Envelope:
    return Envelope({"_type": kind, "fleet": fleet, "serial": serial, "root": root, **fields}, ())


def read_signed(kind: type[_S], text: str) -> tuple[_S, Envelope]:
    """Parse, without verifying signatures.

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
