"""What an action of the console is: its endpoint, its form, and who may do it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel

from console.ports import Role
from coordinator.actions.answers import ActionAnswer
from coordinator.audit.chain import Person
from coordinator.config.coordinator import CoordinatorSettings
from protocol.base import Frozen

FORMS: Final = "/act"
"""Forms are sent to this path and that of the endpoint."""


class NoBody(Frozen):
    """Nothing beside the path."""


@dataclass(frozen=True, slots=True)
class ActionCall:
    """One call of an action.

    Attributes:
        settings: of the task that it acts on; of the main task, if the action is the fleet's.
        person: who acts.
        path: the names in the path.
        body: an instance of the action's ``body``.
        address: where the caller reaches the console, as ``https://HOST:PORT``.
    """

    settings: CoordinatorSettings
    person: Person
    path: Mapping[str, Any]
    body: Any
    address: str


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """An action.

    Attributes:
        name: as in the audit log.
        path: of its endpoint below ``/api/v1``.
        role: the least role that may do it.
        summary: for the OpenAPI document.
        body: the model of its JSON body, and of the fields of its form.
        answer: the model of its answer.
        run: does it; synchronous; raises ``LichenError``.
        of_fleet: it is the same for all tasks, and has one address.
    """

    name: str
    path: str
    role: Role
    summary: str
    body: type[BaseModel]
    answer: type[ActionAnswer]
    run: Callable[[ActionCall], ActionAnswer]
    of_fleet: bool = False


@dataclass(frozen=True, slots=True)
class FormInput:
    """A field that a person fills in. ``choices``: a list to choose from. ``hint``: below it."""

    name: str
    words: str
    kind: Literal["text", "number"] = "text"
    value: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class ActionForm:
    """A button that opens a form.

    Attributes:
        action: what it does.
        label: on the button.
        confirm: what will happen, in a sentence.
        path: the names in the action's path.
        hidden: what the person looks at: the action refuses if it is not so any more.
        inputs: what they fill in.
        danger: it cannot be taken back.
    """

    action: ConsoleAction
    label: str
    confirm: str
    path: Mapping[str, str] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[FormInput, ...] = ()
    danger: bool = False

    def target(self, base: str) -> str:
        """Where it is sent from a page of the task whose addresses begin with ``base``."""
        path = FORMS + self.action.path.replace(":int}", "}").format_map(self.path)
        return path if self.action.of_fleet else base + path
