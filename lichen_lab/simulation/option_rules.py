"""Which options of ``lichen simulate`` go together; options of the method."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from protocol.errors import Misconfigured

_PAIRS: Final = {
    "missing_share": "affected_rounds",
    "affected_rounds": "missing_share",
    "snr_db": "noisy_rounds",
}
"""An option that does nothing alone, and the option that it needs."""


def require_one_kind(
    task: Path | None,
    data: Path | None,
    test: Path | None,
    dataset: object | None,
    changes: dict[str, Any],
) -> None:
    """Require files or a data set, each with its own options.

    Raises:
        BadParameter: the message names the options.
    """
    if dataset is None and changes:
        raise typer.BadParameter(f"{_flag(next(iter(changes)))} goes with --dataset")
    if dataset is not None and (data is not None or test is not None):
        word = "--data" if data is not None else "--test"
        raise typer.BadParameter(f"{word} and --dataset exclude each other: the data set has its own windows")
    if dataset is None and (task is None or data is None):
        raise typer.BadParameter(
            "name a data set with --dataset, or a task and its devices' data with --task and --data; "
            "or --faults"
        )
    for name, other in _PAIRS.items():
        if name in changes and other not in changes:
            raise typer.BadParameter(f"{_flag(name)} does nothing without {_flag(other)}: give both")


def world_kind(**chosen: bool) -> str:
    """The kind of the worlds of ``--faults``, by its option.

    Raises:
        BadParameter: there are two that are not ``secure`` and ``private``.
    """
    words = [name for name, on in chosen.items() if on]
    if words == ["secure", "private"]:
        return "secure_private"
    if len(words) > 1:
        raise typer.BadParameter(f"{' and '.join(map(_flag, words))} exclude each other")
    return words[0] if words else "plain"


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` each; a value that is not JSON is a string.

    Raises:
        Misconfigured: there is no ``=`` in it.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise Misconfigured(f"--option {word}: write KEY=VALUE, as in --option impute=zero_input")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
