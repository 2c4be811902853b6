"""Values of the wrong TOML type in a settings file: a string for a number, a number for a boolean.

TOML has types, so ``retain = "yes"`` is a mistake, which pydantic would turn into a boolean. A variable of
the environment has only text, and is read as the type of its key.
"""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

Path = tuple[str | int, ...]
_WANTED: Final = {
    bool: "true or false is wanted",
    int: "a whole number is wanted",
    float: "a number is wanted",
}


class RawValue(str):
    """A text of the environment: it may stand for a number or a boolean."""

    __slots__ = ()


def wrong_kinds(model: type[BaseModel], values: Mapping[str, Any]) -> dict[Path, str]:
    """Paths of values that have another type than their key, and the type expected, in words.

    Only numbers and booleans are checked; all else is left to the model.
    """
    return dict(_of_model(model, values, ()))


def plain(values: Any) -> Any:
    """The same values, with texts of the environment as plain strings."""
    if isinstance(values, Mapping):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, list):
        return [plain(value) for value in values]
    return str(values) if isinstance(values, RawValue) else values


def _of_model(model: type[BaseModel], values: Mapping[str, Any], at: Path) -> Iterator[tuple[Path, str]]:
    for name, field in model.model_fields.items():
        if name in values:
            yield from _of(field.annotation, values[name], (*at, name))


def _of(annotation: Any, value: Any, at: Path) -> Iterator[tuple[Path, str]]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _of(inner[0], value, at)
    elif origin in {Union, UnionType}:
        problems = [list(_of(one, value, at)) for one in inner if one is not NoneType]
        if problems and all(problems):  # the value fits no member of the union
            yield from min(problems, key=len)
    elif origin in {tuple, list, set, frozenset} and isinstance(value, list):
        kinds = inner if origin is tuple and Ellipsis not in inner else inner[:1] * len(value)
        for i, (kind, one) in enumerate(zip(kinds, value, strict=False)):
            yield from _of(kind, one, (*at, i))
    elif origin in {dict, Mapping} and isinstance(value, Mapping):
        for key, one in value.items():
            yield from _of(inner[1], one, (*at, key))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, Mapping):
        yield from _of_model(annotation, value, at)
    elif not isinstance(value, RawValue) and (words := _wanted(annotation, value)):
        marks = ", without quotation marks" if isinstance(value, str) else ""
        yield at, f"{words}{marks} (found {value!r})"


def _wanted(annotation: Any, value: Any) -> str:
    if annotation is bool:
        return _WANTED[bool] if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if annotation in {int, float}:
        return _WANTED[annotation] if isinstance(value, str | bool) else ""
    return ""
