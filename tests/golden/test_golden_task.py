"""The keys of a task and their defaults: an announcement leaves defaults out, so that they never change.

A new key: add it here (``PYTHONPATH=. python -m tests.golden.test_golden_task``), and say in
``protocol.tasks.features`` whether a device must know it. A default that changes would mean one thing to a
device and another to the coordinator.
"""

import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from protocol.tasks.task import Task

FILE = Path(__file__).parent / "task_keys.json"


def _tables(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for inner in get_args(annotation) for table in _tables(inner)]


def keys(table: type[BaseModel], at: str = "") -> dict[str, Any]:
    """Path -> default, as JSON; ``required`` where there is none."""
    found: dict[str, Any] = {}
    for name, field in table.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if field.is_required():
            found[at + name] = "required"
        else:
            found[at + name] = "a table" if isinstance(default, BaseModel) else to_jsonable_python(default)
        for inner in _tables(field.annotation):
            if inner is table:  # a modality as it is sensed has the keys of a modality
                continue
            found |= keys(inner, f"{at}{name}.")
    return found


def test_no_released_key_of_a_task_is_gone_or_has_another_default() -> None:
    kept, now = json.loads(FILE.read_text()), keys(Task)
    assert {path: now.get(path, "gone") for path in kept} == kept


def test_every_key_of_a_task_is_written_down() -> None:
    assert sorted(keys(Task)) == sorted(json.loads(FILE.read_text()))


if __name__ == "__main__":
    FILE.write_text(json.dumps(keys(Task), indent=1) + "\n")
