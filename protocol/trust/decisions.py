"""A decision, signed: who shall run which bundle, in which order of decisions, and by which rules.

A ``ModelPointer`` carries it as the text of an envelope (:mod:`protocol.trust.signing`), signed by the keys
that
the root names for ``targets``: the role that says what devices may run. ``_type`` keeps it apart from what
else these keys sign. Pure.
"""

from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from protocol.base import Count, Name, Wire
from protocol.errors import Reason, Refused
from protocol.messages import MAX_DECISION_BYTES, BlobRef, ModelPointer
from protocol.rollout import Trial
from protocol.trust.signing import Envelope, malformed

WHAT: Final = "decision"
_SAME: Final = ("task", "version", "serial")


class Decision(Wire):
    """What is signed: all that must not be put together anew."""

    type: Literal["decision"] = Field(alias="_type")
    fleet: Name
    device: Name | None
    """None: for every device of the fleet."""
    task: Name
    version: Count
    bundle: BlobRef
    serial: Count
    trial: Trial | None
    """Fractions are written as text: what is signed has none (:func:`protocol.trust.signing.canonical`)."""
    root: Count
    """The version of the root whose key signed it."""

    def difference(self, pointer: ModelPointer) -> str:
        """What the pointer says otherwise, in words; empty: nothing."""
        for name in _SAME:
            said, signed = getattr(pointer, name), getattr(self, name)
            if said != signed:
                return f"{name} {said} is announced, {signed} was signed"
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
        device: whom it is for; None: every device of the fleet.
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
    """The shortest text that reads as this number again."""
    return repr(value) if isinstance(value, float) else value


def read_decision(text: str) -> tuple[Decision, Envelope]:
    """Parse; signatures are not looked at.

    Raises:
        Refused: MALFORMED or TOO_LARGE.
    """
    envelope = Envelope.read(text.encode(errors="replace"), MAX_DECISION_BYTES, WHAT)
    try:
        return Decision.model_validate(envelope.signed), envelope
    except ValidationError as error:
        raise malformed(WHAT, error) from None


def require_for(decision: Decision, pointer: ModelPointer, fleet: str, device: str) -> None:
    """Whether a decision is for this device, and the pointer says what was decided.

    Raises:
        Refused: UNTRUSTED, with what differs.
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
