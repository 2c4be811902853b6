"""Selection policies: every module here with a ``POLICY``, by its name.

A policy is pure code over its input (:class:`coordinator.selection.policies.base.SelectionInput`); a further
one is a further module, and ``rounds.selection`` names it.
"""

import difflib
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING

from coordinator.selection.policies.base import Counts, Experts, PastRound, Policy, Selection, SelectionInput
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Counts", "Experts", "PastRound", "Policy", "Selection", "SelectionInput", "policies", "policy"]


@cache
def policies() -> "Mapping[str, Policy]":
    """All policies by name, sorted.

    Raises:
        TypeError: a module's POLICY is not a Policy, or has another name than its module (an internal error).
    """
    found: dict[str, Policy] = {}
    for entry in sorted(iter_modules(__path__), key=lambda entry: entry.name):
        made = getattr(import_module(f"{__name__}.{entry.name}"), "POLICY", None)
        if made is None:
            continue
        if not isinstance(made, Policy) or made.name != entry.name:
            raise TypeError(
                f"coordinator/selection/policies/{entry.name}: POLICY must be a Policy named {entry.name!r}"
            )
        found[made.name] = made
    return MappingProxyType(found)


def policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        Misconfigured: there is none; the message names those there are.
    """
    known = policies()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Misconfigured(f"task key 'rounds.selection': {name!r} is none of {', '.join(known)}{hint}")
