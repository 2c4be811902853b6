"""Messages about errors in a settings file: file, key path, expected value, the nearest known key."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.base import NAME_ERROR

_LIST: Final = "a list is wanted, in [ ]"
_PLAIN: Final = {"missing": "missing; it has no default", "tuple_type": _LIST, "list_type": _LIST}
"""Fixed messages, by pydantic's name of the error."""
_NOTHING: Final[Mapping[tuple[str | int, ...], str]] = MappingProxyType({})


class Origins:
    """The file or variable that set each key."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._by_path: dict[tuple[str, ...], str] = {}

    def note(self, path: tuple[str, ...], source: str) -> None:
        """Record that ``path`` (and all below) was last set by ``source``."""
        self._by_path = {p: s for p, s in self._by_path.items() if p[: len(path)] != path}
        self._by_path[path] = source

    def of(self, path: Iterable[str | int]) -> str:
        """The source of the nearest enclosing key."""
        names = tuple(part for part in path if isinstance(part, str))
        for end in range(len(names), 0, -1):
            if names[:end] in self._by_path:
                return self._by_path[names[:end]]
        return self._default


def explain(
    model: type[BaseModel],
    values: Mapping[str, Any],
    error: ValidationError | None,
    origins: Origins,
    wrong: Mapping[tuple[str | int, ...], str] = _NOTHING,
    *,
    joint: str = ": ",
) -> str:
    """One line for every wrong key.

    Args:
        model: of the table.
        values: the table.
        error: the model's error, if any.
        origins: of the values.
        wrong: path -> message, for values that get this line whatever the model says.
        joint: between a key's origin and its path.
    """
    messages = dict(wrong)
    every = [] if error is None else error.errors(include_url=False)
    lines = []
    for one in every:
        path = _data_path(values, one["loc"])
        if not _follows(one, every) and path not in messages:
            lines.append((path, _words(model, path, one)))
    lines += messages.items()
    return "\n".join(
        f"{f'{origins.of(path)}{joint}{_dotted(path)}' if path else origins.of(())}: {words}"
        for path, words in lines
    )


def _follows(one: ErrorDetails, every: Iterable[ErrorDetails]) -> bool:
    """Whether a list is too short only because its elements were wrong, which have lines of their own."""
    at = one["loc"]
    return one["type"] == "too_short" and any(
        len(other["loc"]) > len(at) and other["loc"][: len(at)] == at for other in every
    )


def _words(model: type[BaseModel], path: tuple[str | int, ...], one: ErrorDetails) -> str:
    kind, context, given = one["type"], one.get("ctx", {}), one.get("input")
    if kind == "extra_forbidden":
        return f"unknown key{_hint(model, path)}"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == NAME_ERROR:
        return str(one["msg"])
    if kind in {"too_short", "too_long"}:
        bound = (
            f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        )
        return f"{bound} wanted, there are {context['actual_length']}"
    message = str(one["msg"]).removeprefix("Value error, ")
    if isinstance(given, str | int | float | bool):
        return f"{message} (found {given!r})"
    return message


def _data_path(values: Any, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The error's location without the tags that pydantic adds for members of a union."""
    path: list[str | int] = []
    current = values
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(current, Mapping) and isinstance(part, str):
            if part in current or last:
                path.append(part)
                current = current.get(part)
        elif isinstance(current, list) and isinstance(part, int):
            path.append(part)
            current = current[part] if part < len(current) else None
    return tuple(path)


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models(inner)]


def _below(models: Iterable[type[BaseModel]], part: str) -> list[type[BaseModel]]:
    return [
        m
        for model in models
        if part in model.model_fields
        for m in _models(model.model_fields[part].annotation)
    ]


def _all_keys(models: Iterable[type[BaseModel]], at: str = "", depth: int = 4) -> dict[str, str]:
    """Dotted path -> last key, of every known key."""
    keys: dict[str, str] = {}
    for model in models:
        for name, field in model.model_fields.items():
            keys[f"{at}{name}"] = name
            if depth:
                keys.update(_all_keys(_models(field.annotation), f"{at}{name}.", depth - 1))
    return keys


def _hint(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """The nearest key at the same level, else the same key elsewhere, else the list of this level's keys."""
    models: list[type[BaseModel]] = [model]
    for part in path[:-1]:
        if isinstance(part, str):
            models = _below(models, part) or models
    key = str(path[-1])
    siblings = sorted({name for m in models for name in m.model_fields})
    near = difflib.get_close_matches(key, siblings, 1, 0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    elsewhere = [full for full, name in _all_keys([model]).items() if name == key]
    if elsewhere:
        return f"; did you mean {elsewhere[0]!r}?"
    return f"; known here: {', '.join(siblings)}" if siblings else ""
