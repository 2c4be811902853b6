"""Generates docs/task.md: every key of ``task.toml``, from the models that read it."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel

from models.registry import methods
from protocol.tasks.folding import Aggregator, LocalPrivacy, Privacy, SecureAggregation
from protocol.tasks.kinds import Augment, Backbone
from protocol.tasks.task import Task

_ELSEWHERE: Final[dict[type[BaseModel], str]] = {
    Augment: "[its keys](networks.md#augmentation)",
    Backbone: "[its keys](backbones.md#the-table)",
    Aggregator: "[its keys](rounds.md#from-updates-to-a-version)",
    Privacy: "[its keys](privacy.md#keys)",
    LocalPrivacy: "[its keys](privacy.md#training-on-the-device)",
    SecureAggregation: "[its keys](secure-aggregation.md#keys)",
}
"""Tables that another page describes."""
_MORE: Final = {
    "name": "name of the task; the coordinator's state folder belongs to it",
    "method": f"one of {', '.join(f'[{name}](methods/{name}.md)' for name in methods())}",
    "seed": "seed of the first version and of all random choices",
    "modalities.name": "name in recordings and sources",
    "modalities.unit": "unit of values: `g`, `m/s2`, `rad/s`; `1`: none is checked",
    "modalities.low": "lowest possible value; none: any",
    "modalities.high": "highest possible value; none: any",
    "targets.name": "name of the target; its labels are `target/<name>` in recordings",
    "targets.kind": "one of `labels`, a number, or the window of a modality",
    "targets.labels": "classification: two or more classes",
    "targets.modality": "generation: the modality that is generated",
    "targets.unit": "regression: unit of the number",
    "targets.scale": "see `offset`",
    "targets.offset": "regression: the network learns `(value - offset) / scale`",
    "window.length_s": "length of a window: shorter than an activity, longer than its pattern",
    "window.stride_s": "time between the starts of two windows; if shorter than `length_s`, they overlap",
    "network.feature_dim": "size of the feature vector of a window",
    "network.hidden_dim": "hidden size of the head",
    "rounds.count": "number of rounds; if it is raised, the fleet continues",
    "rounds.deadline_s": "a device that has not delivered by then is left out of the round",
    "uplink.codec": "codec of model deltas",
    "downlink.codec": "codec of versions; `float32` sends whole versions, without rounding",
    "uplink.error_carry": "rounding errors are added to the next update (error feedback)",
    "aggregator": "the server's step from a round's mean to the next version",
    "graph.features.name": "name of the modality of entities",
    "graph.features.dim": "size of an entity's feature vector",
    "graph.max_entities": "bound for one device",
    "graph.max_relations": "bound for one device",
    "graph.max_triples": "bound for one device",
}
"""The meaning of a key that has no docstring of its own in its model."""
_NOT_WRITTEN: Final = frozenset({"modalities.sensed"})
"""Keys of announced tasks that no task file has."""
_HEAD: Final = """# Every key of a task

Write one from recordings, and check it:

```
lichen task init recordings/ --out task.toml
lichen task check task.toml
```

A task says what a fleet learns: `task.toml` of a coordinator, announced to devices. Times are in seconds, rates in
Hz; `none` is a key that is left out. An unknown key is refused, with the nearest one.

Made by `python -m lichen.commands.task_reference > docs/task.md`;
`tests/unit/lichen/commands/test_task_reference.py` compares it.
"""  # noqa: E501 - lines of a page
_COLUMNS: Final = 118
_TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "under {}",
    "maxItems": "at most {} of them",
}


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_table(Task, "", "The file"), ""])


def keys(model: type[BaseModel] = Task, at: str = "") -> Iterator[str]:
    """Every key with its table, as ``window.length_s``."""
    for name, field in model.model_fields.items():
        inner = _inner(field.annotation)
        if f"{at}{name}" in _NOT_WRITTEN:
            continue
        if inner is None or inner in _ELSEWHERE:
            yield f"{at}{name}"
        else:
            yield from keys(inner, f"{at}{name}.")


def _table(model: type[BaseModel], at: str, title: str) -> list[str]:
    """A heading, the rows of a model's own keys, and the tables below it."""
    words, schema = _docstrings(model), model.model_json_schema()
    if "$ref" in schema:  # a model that has itself as a field
        schema |= schema["$defs"][model.__name__]
    lines = [f"## {title}", "", *_about(model, at), "| key | value | default | |", "|---|---|---|---|"]
    below: list[str] = []
    for name, field in model.model_fields.items():
        inner = _inner(field.annotation)
        if f"{at}{name}" in _NOT_WRITTEN:
            continue
        if inner is not None and inner not in _ELSEWHERE:
            kind = _kind(field.annotation, inner)
            path = f"{at}{name}" + (".<modality>" if kind == "map" else "")
            marks = f"`[[{path}]]`" if kind == "list" else f"`[{path}]`"
            below += ["", *_table(inner, f"{at}{name}.", marks)]
            continue
        meaning = words.get(name) or _MORE[f"{at}{name}"]
        if inner is not None:
            lines.append(f"| `{name}` | table | none | {_plain(meaning)} {_ELSEWHERE[inner]} |")
            continue
        value = _value(schema["properties"][name], schema.get("$defs", {}))
        default = (
            "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        )
        lines.append(f"| `{name}` | {value} | {default} | {_plain(meaning)} |")
    return [*lines, *below]


def _about(model: type[BaseModel], at: str) -> list[str]:
    return [textwrap.fill(_plain(inspect.getdoc(model) or ""), _COLUMNS), ""] if at else []


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The model of a table below, whatever holds it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _inner(one))), None)


def _kind(annotation: Any, inner: type[BaseModel]) -> str:
    """Whether it is one table, a list of tables, or a table of tables."""
    if annotation is inner:
        return "one"
    for one in (annotation, *get_args(annotation)):
        origin = getattr(one, "__origin__", None)
        if origin in {tuple, dict}:
            return "list" if origin is tuple else "map"
    return "one"


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings of each key in the models' source, inherited keys too."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not (issubclass(owner, BaseModel) and owner.model_fields):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)  # noqa: S101 - what getsource gives of a class
        for before, after in zip(body.body, body.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = inspect.cleandoc(words)
    return found


def _value(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    """The values that a key accepts, in words."""
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return next(_value(one, defs) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = [words.format(f"{schema[key]:,}") for key, words in _BOUNDS.items() if key in schema]
    if low is not None and high is not None:
        bounds = [f"{low:,} to {high:,}"]
    if schema.get("type") == "array":
        items = schema.get("items") or schema.get("prefixItems", [{}])[0]
        return ", ".join([f"list of {_value(items, defs)}", *bounds])
    if schema.get("type") == "object":
        return "table"
    return ", ".join([_TYPES.get(schema.get("type", ""), "any"), *bounds])


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | dict):
        return "empty" if not value else f"`{json.dumps(value)}`"
    return f"`{json.dumps(value)}`"


def _plain(words: str) -> str:
    """ReStructuredText's marks as Markdown's, on one line that a table can hold."""
    text = " ".join(words.split()).replace("``", "`").replace(":attr:`", "`").replace(":class:`", "`")
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
