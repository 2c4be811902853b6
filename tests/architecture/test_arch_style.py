"""Style and types are tests: CI runs `make test` and `make test-long`, and no other check."""

from pathlib import Path

import pytest

from tests.support.python import python

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "tool",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        pytest.param(["mypy"], marks=pytest.mark.long),
    ],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_the_tree_is_clean(tool: list[str]) -> None:
    python("-m", *tool, timeout=280)
