"""Rollouts: create, pause, resume, abort."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from console.actions.definitions import ActionCall, ActionForm, ConsoleAction, FormInput
from console.ports import Role
from coordinator.actions import rollouts
from coordinator.actions.answers import RolloutCreated, RolloutOrdered
from coordinator.config.rollout import Gates, Waves
from protocol.base import Count, Frozen
from protocol.rollout import Trial


def _shares(value: Any) -> Any:
    """``0.25,1``, as a person writes it."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class SeenRollout(Frozen):
    """``phase``: in which the rollout was when the person looked; another one is refused."""

    phase: Annotated[str, Field(max_length=20)] | None = None


class NewRollout(Frozen):
    """What differs from ``[rollout]`` of the coordinator.

    ``version``: None: the newest. ``last``: the number of the last rollout that the person saw.
    """

    version: Count | None = None
    last: Count | None = None
    canary: Annotated[str, Field(max_length=60_000)] | None = None
    waves: Annotated[Waves, BeforeValidator(_shares)] | None = None
    soak_s: float | None = None
    deadline_s: float | None = None
    gates: Gates | None = None
    trial: Trial | None = None


def _create(call: ActionCall) -> RolloutCreated:
    body: NewRollout = call.body
    given = body.model_dump(exclude={"version", "last"}, exclude_unset=True)
    made = rollouts.create(call.settings, call.person, given, version=body.version, last=body.last)
    return RolloutCreated.of(made)


def _pause(call: ActionCall) -> RolloutOrdered:
    return RolloutOrdered.of(
        rollouts.pause(call.settings, call.person, call.path["rollout"], call.body.phase)
    )


def _resume(call: ActionCall) -> RolloutOrdered:
    return RolloutOrdered.of(
        rollouts.resume(call.settings, call.person, call.path["rollout"], call.body.phase)
    )


def _abort(call: ActionCall) -> RolloutOrdered:
    return RolloutOrdered.of(
        rollouts.abort(call.settings, call.person, call.path["rollout"], call.body.phase)
    )


_AT = "/rollouts/{rollout:int}"
CREATE = ConsoleAction(
    "rollout.create", "/rollouts", Role.OPERATOR, "Start a rollout", NewRollout, RolloutCreated, _create
)
PAUSE = ConsoleAction(
    "rollout.pause", f"{_AT}/pause", Role.OPERATOR, "Pause a rollout", SeenRollout, RolloutOrdered, _pause
)
RESUME = ConsoleAction(
    "rollout.resume",
    f"{_AT}/resume",
    Role.OPERATOR,
    "Resume a paused rollout",
    SeenRollout,
    RolloutOrdered,
    _resume,
)
ABORT = ConsoleAction(
    "rollout.abort", f"{_AT}/abort", Role.OPERATOR, "End a rollout", SeenRollout, RolloutOrdered, _abort
)
ACTIONS = (CREATE, PAUSE, RESUME, ABORT)


def forms_of_rollout(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``rollout``: ``{"rollout": N, "phase": WORD}``."""
    number, phase = str(subject["rollout"]), str(subject["phase"])
    at, seen = {"rollout": number}, {"phase": phase}
    pause = ActionForm(
        PAUSE,
        "Pause",
        f"Rollout {number} pauses: no further device gets the version. Devices that have it keep it, and may "
        "still roll back.",
        at,
        seen,
    )
    resume = ActionForm(
        RESUME, "Resume", f"Rollout {number} goes on. Its stage gets its whole time again.", at, seen
    )
    abort = ActionForm(
        ABORT,
        "Abort",
        f"Rollout {number} ends, and all devices go back to the stable version. It cannot be resumed.",
        at,
        seen,
        danger=True,
    )
    return {"open": [pause, abort], "paused": [resume, abort]}.get(phase, [])


def forms_of_rollouts(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``rollouts``; ``{"last": N}`` if the page knows the last one's number."""
    inputs = (
        FormInput("version", "Version", "number", hint="empty: the newest that was exported"),
        FormInput(
            "canary", "Canary", hint="label:KEY=VALUE, share:0.1 or device:NAME,NAME; empty: as configured"
        ),
        FormInput("waves", "Waves", hint="shares of the fleet, as 0.25,1; empty: as configured"),
    )
    words = "A rollout begins: the canary devices get the version first, then the waves."
    seen = {"last": str(subject["last"])} if "last" in subject else {}
    return [ActionForm(CREATE, "New rollout", words, {}, seen, inputs)]
