"""Signed decisions: which devices run which bundle, with a serial and the rules of the trial.

A ``ModelPointer`` carries it as the text of an envelope (:mod:`protocol.trust.signing`), signed by the keys
of the role ``targets`` in the root. ``_type`` separates it from other statements of these keys. Pure.
"""

from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from protocol.base import Count, Name, Wire
from protocol.errors import Reason, Refused
from protocol.messages import MAX_DECISION_BYTES, BlobRef, ModelPointer
from protocol.rollout import Trial
from protocol.topics import Namespace
from protocol.trust.signing import Envelope, malformed

WHAT: Final = "decision"
_SAME: Final = ("task", "version", "serial")


class Decision(Wire):
    """The signed fields: they must not be recombined."""

    type: Literal["decision"] = Field(alias="_type")
    fleet: Namespace
    """The task's namespace in the topics: a statement for one task of a fleet is none for another."""
    device: Name | None
    """None: every device of the fleet."""
    task: Name
    version: Count
    bundle: BlobRef
    serial: Count
    trial: Trial | None
    """Fractions are text, because signed JSON has none (:func:`protocol.trust.signing.canonical`)."""
    root: Count
    """The version of the root whose key signed it."""

    def difference(self, pointer: ModelPointer) -> str:
        """The first difference to the pointer; empty without any."""
        for name in _SAME:
            announced, signed = getattr(pointer, name), getattr(self, name)
            if announced != signed:
                return f"{name} {announced} is announced, {signed} was signed"
        if pointer.bundle != self.bundle:
            return f"bundle {pointer.bundle.digest[:12]} is announced, {self.bundle.digest[:12]} was signed"
        if pointer.trial != self.trial:
            return "the rules of the trial are not those that were signed"
        return ""


def drafted(pointer: ModelPointer, fleet: str, device: str | None, root: int) -> Envelope:
    """The decision of a pointer, to be signed.

    Args:
        pointer: what was decided.
        fleet: its name.
        device: the recipient; None: every device of the fleet.
        root: the version of the root whose key will sign.
    """
    trial = None if pointer.trial is None else pointer.trial.model_dump()
    return Envelope(
        {
            "_type": WHAT,
            "fleet": fleet,
            "device": device,
            "task": pointer.task,
            "version": pointer.version,
            "bundle": pointer.bundle.model_dump(),
            "serial": pointer.serial,
            "trial": trial and {key: _whole(value) for key, value in trial.items()},
            "root": root,
        },
        (),
    )


def _whole(value: Any) -> Any:
    """The shortest text that parses as this number."""
    return repr(value) if isinstance(value, float) else value


def read_decision(text: str) -> tuple[Decision, Envelope]:
    """Parse, without verifying signatures.

    Raises:
        Refused: MALFORMED or TOO_LARGE.
    """
    envelope = Envelope.read(text.encode(errors="replace"), MAX_DECISION_BYTES, WHAT)
    try:
        return Decision.model_validate(envelope.signed), envelope
    except ValidationError as error:
        raise malformed(WHAT, error) from None


def require_for(decision: Decision, pointer: ModelPointer, fleet: str, device: str) -> None:
    """Check that a decision is for this device and matches the pointer.

    Raises:
        Refused: UNTRUSTED; the detail names the difference.
    """
    words = ""
    if decision.fleet != fleet:
        words = f"it was signed for fleet {decision.fleet!r}, and this is {fleet!r}"
    elif decision.device not in {None, device}:
        words = f"it was signed for device {decision.device!r}, and this is {device!r}"
    elif differs := decision.difference(pointer):
        words = differs
    if words:
        raise Refused(Reason.UNTRUSTED, f"{WHAT}: {words}")
