"""Faults that are planted into a device's side of secure rounds, for worlds that must notice them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import edge_agent.secure_aggregation.service
import lichen_lab.simulation.secure_rounds.driver
from edge_agent.secure_aggregation import transitions
from edge_agent.secure_aggregation.events import MaskingState, Tell
from edge_agent.secure_aggregation.masking import masked_vector
from edge_agent.secure_aggregation.table import TABLE
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.messages import Revealed


def use_handler(patch: pytest.MonkeyPatch, name: str, handler: Callable[..., Any]) -> None:
    """Take another handler for some events of a device's machine."""
    for row in TABLE.rows.values():
        if row.handler is getattr(transitions, name):
            patch.setattr(row, "handler", handler)


def keys_of_the_first_attempt(patch: pytest.MonkeyPatch) -> None:
    """A device makes its keys once, and uses them in every attempt: the next masks are the same."""
    first: dict[str, Any] = {}
    invite = transitions.invite

    def again(rules: Any, state: Any, event: Any) -> Any:
        new, commands = invite(rules, state, event)
        if new is state:
            return new, commands
        new = replace(new, secrets=first.setdefault(rules.device, new.secrets))
        return new, (Tell(transitions._announcement(rules, new)),)

    use_handler(patch, "invite", again)


def both_shares(patch: pytest.MonkeyPatch) -> None:
    """A device tells the seed's share and the mask key's of each neighbour."""

    def all_of_them(state: MaskingState) -> Revealed:
        assert state.attempt is not None
        return Revealed(
            attempt=state.attempt.digest,
            seeds={name: held.seed for name, held in state.held.items()},
            masks={name: held.mask for name, held in state.held.items()},
        )

    patch.setattr(transitions, "revealed", all_of_them)


def no_own_mask(patch: pytest.MonkeyPatch) -> None:
    """Vectors have the masks of neighbours alone: the share of a neighbour's key uncovers one."""

    def without(vector_N: Any, plan: Any, bits: int) -> bytes:
        total_N = vector_N.copy()
        add_mask(total_N, plan.own, minus=True)
        return masked_vector(total_N, plan, bits)

    for module in (edge_agent.secure_aggregation.service, lichen_lab.simulation.secure_rounds.driver):
        patch.setattr(module, "masked_vector", without)
