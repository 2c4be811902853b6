"""The rounds: hold, resume, end."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from console.actions.definitions import ActionCall, ActionForm, ConsoleAction, FormInput
from console.ports import Role
from coordinator.actions import rounds
from coordinator.actions.answers import RoundsOrdered
from protocol.base import Frozen


class RoundsBody(Frozen):
    """``why``: the reason. ``seen``: what was ordered when the person looked; ``open``: nothing."""

    why: Annotated[str, Field(max_length=200)] = ""
    seen: Literal["open", "held", "ended"] | None = None


def _seen(body: RoundsBody) -> Any:
    return "" if body.seen == "open" else body.seen


def _hold(call: ActionCall) -> RoundsOrdered:
    before = rounds.hold(call.settings, call.person, call.body.why, seen=_seen(call.body))
    return RoundsOrdered.of("held", before)


def _resume(call: ActionCall) -> RoundsOrdered:
    before = rounds.resume(call.settings, call.person, seen=_seen(call.body))
    return RoundsOrdered.of("open", before)


def _end(call: ActionCall) -> RoundsOrdered:
    before = rounds.end(call.settings, call.person, call.body.why, seen=_seen(call.body))
    return RoundsOrdered.of("ended", before)


HOLD = ConsoleAction(
    "rounds.hold", "/rounds/hold", Role.OPERATOR, "Open no further round", RoundsBody, RoundsOrdered, _hold
)
RESUME = ConsoleAction(
    "rounds.resume", "/rounds/resume", Role.OPERATOR, "Open rounds again", RoundsBody, RoundsOrdered, _resume
)
END = ConsoleAction(
    "rounds.end", "/rounds/end", Role.OPERATOR, "End the rounds", RoundsBody, RoundsOrdered, _end
)
ACTIONS = (HOLD, RESUME, END)
_WHY = FormInput("why", "Why", hint="for others, in the status and the audit log")


def forms_of_rounds(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``rounds``: ``{"ordered": WORD}``, ``rounds_ordered`` of the status; None: not known."""
    ordered = subject.get("ordered")
    if ordered is None:
        return []
    seen = {"seen": ordered or "open"}
    hold = ActionForm(
        HOLD, "Hold", "No further round is opened; an open one goes on to its end.", {}, seen, (_WHY,)
    )
    resume = ActionForm(RESUME, "Resume", "Rounds are opened again.", {}, seen)
    end = ActionForm(
        END,
        "End",
        "The rounds end: an open one closes with the updates that are here; the last version is exported.",
        {},
        seen,
        (_WHY,),
        danger=True,
    )
    return {"held": [resume, end], "ended": [resume]}.get(ordered, [hold, end])
