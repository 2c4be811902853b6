"""The page of a task's keys is what the models say."""

from pathlib import Path

import pytest

from lichen.commands.task_reference import keys, page
from protocol.tasks.kinds import KINDS, Augment
from protocol.tasks.task import Task

PAGE = Path(__file__).parents[4] / "docs" / "task.md"


def test_the_page_is_that_of_the_models(whole: str) -> None:
    assert PAGE.read_text() == whole, "run: python -m lichen.commands.task_reference > docs/task.md"


@pytest.fixture(scope="module")
def whole() -> str:
    return page()


@pytest.mark.parametrize("key", [*keys()])
def test_every_key_has_a_row_with_words(whole: str, key: str) -> None:
    table, _, name = key.rpartition(".")
    marks = {"": "## The file", "network.encoders": "## `[network.encoders.<modality>]`"}
    lists = {"modalities", "targets", "graph.features", "packages"}
    head = marks.get(table) or (f"## `[[{table}]]`" if table in lists else f"## `[{table}]`")
    part = whole.split(head + "\n")[1].partition("\n## ")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(row.split(" | ")[-1]) > len("| x |")


def test_all_tables_of_a_task_are_there() -> None:
    assert {key.partition(".")[0] for key in keys()} == set(Task.model_fields)


def test_the_page_of_networks_has_every_key_of_augment_with_its_bound_and_kinds() -> None:
    text = PAGE.with_name("networks.md").read_text().split("## Augmentation\n")[1].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in text.splitlines() if "| `" in line]
    bounds = {
        name: part.get("maximum", True) for name, part in Augment.model_json_schema()["properties"].items()
    }
    assert {key.strip("`"): bound for key, bound, _ in rows} == {
        k: f"{v:g}" if v is not True else "true" for k, v in bounds.items()
    }
    for key, _, kinds in rows:
        fitting = [kind for kind, rules in KINDS.items() if key.strip("`") in rules.augments]
        assert kinds in {", ".join(fitting), "all but text"}
        assert (kinds == "all but text") == (len(fitting) == len(KINDS) - 1)
