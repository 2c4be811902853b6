"""Whether a canary matches any device: the stage would wait for a mistyped name until its deadline. Pure."""

import difflib
from collections.abc import Collection, Mapping
from typing import Final

from protocol.errors import Reason, Refused
from runtime.text import one_line

_NEAR: Final = 3
_MAX_NAMES: Final = 5


def doubts(
    canary: str, devices: Mapping[str, Mapping[str, str]], enrolled: Collection[str]
) -> tuple[str, ...]:
    """Warnings about it: devices may join later, and labels be given.

    Args:
        canary: ``label:KEY=VALUE``, ``share:0.1`` or ``device:NAME,NAME``, checked.
        devices: every device that ever reported -> its labels; if there is none, no warnings.
        enrolled: devices of the identity store, which may not have reported yet.

    Raises:
        Refused: no known device matches at all (UNKNOWN_DEVICE).
    """
    kind, _, rest = canary.partition(":")
    if not devices or kind == "share":
        return ()
    if kind == "label":
        key, _, value = rest.partition("=")
        if any(labels.get(key) == value for labels in devices.values()):
            return ()
        words = f"no device says that it has the label {rest}{_labels(rest, devices)}"
        raise Refused(Reason.UNKNOWN_DEVICE, _nobody(canary, words))
    names = rest.split(",")
    strange = [name for name in names if name not in devices]
    words_of = {name: _unknown(name, devices, enrolled) for name in strange}
    if len(strange) == len(names) and not set(names) & set(enrolled):
        shown = "; ".join(list(words_of.values())[:_MAX_NAMES])
        raise Refused(Reason.UNKNOWN_DEVICE, _nobody(canary, shown))
    more = len(strange) - _MAX_NAMES
    then = "nobody else is in the canary: it waits" if len(strange) == len(names) else "it begins without"
    found = [f"canary: {words}; {then}" for words in list(words_of.values())[:_MAX_NAMES]]
    return (*found, *([f"canary: {more} more that have never reported"] if more > 0 else []))


def _nobody(canary: str, words: str) -> str:
    return (
        f"canary {canary[:80]} matches no device: {words}. No rollout was started; `lichen device ls` shows "
        "the devices that there are"
    )


def _unknown(name: str, devices: Collection[str], enrolled: Collection[str]) -> str:
    if name in enrolled:
        return f"{name} is enrolled, and has never reported"
    near = _near(name, {*devices, *enrolled})
    return f"{name} has never reported here" + (f" (did you mean {near}?)" if near else "")


def _labels(wanted: str, devices: Mapping[str, Mapping[str, str]]) -> str:
    every = {one_line(f"{key}={value}") for labels in devices.values() for key, value in labels.items()}
    if not every:
        return ": no device has labels ([labels] in its agent.toml)"
    if near := _near(wanted, every):
        return f" (did you mean {near}?)"
    more = ", ..." if len(every) > _MAX_NAMES else ""
    return f" (there are {', '.join(sorted(every)[:_MAX_NAMES])}{more})"


def _near(word: str, known: Collection[str]) -> str:
    alike = [one for one in known if one.casefold() == word.casefold()]
    return " or ".join(sorted(alike) or difflib.get_close_matches(word, sorted(known), _NEAR, 0.6))
