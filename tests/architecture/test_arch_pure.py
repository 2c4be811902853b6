"""A module that says in its docstring that it is pure imports no clock, thread, socket, event loop or log."""

import ast
import re

from tests.architecture.test_arch_wiring import graph, imports, reached, trees

IMPURE = {"asyncio", "socket", "structlog", "threading", "time"}


def pure_modules(found: dict[str, ast.Module]) -> list[str]:
    words = {name: ast.get_docstring(tree) or "" for name, tree in found.items()}
    return [name for name, said in words.items() if re.search(r"\bpure\b", said, re.IGNORECASE)]


def impure(found: dict[str, ast.Module], needs: dict[str, set[str]]) -> dict[str, list[str]]:
    """Pure module -> modules that make it impure: itself, or those that it imports."""
    wrong = {
        name
        for name, tree in found.items()
        if any(module.partition(".")[0] in IMPURE for module, _, only in imports(tree) if not only)
    }
    lead = {name: sorted(({name} | reached(needs, name)) & wrong) for name in pure_modules(found)}
    return {name: through for name, through in lead.items() if through}


def test_arch_what_says_that_it_is_pure_is_pure() -> None:
    assert len(pure_modules(trees())) > 40, "where are they?"
    assert not impure(trees(), graph())


def test_arch_what_is_not_pure_is_found() -> None:
    texts = {
        "a": '"""Pure."""\nimport json',
        "b": '"""B. Pure."""\nfrom time import monotonic',
        "c": "import asyncio",
        "d": '"""It is pure: so it is."""\nfrom c import x',
        "e": '"""Pure."""\nimport d',
    }
    found = {name: ast.parse(text) for name, text in texts.items()}
    assert impure(found, {"d": {"c"}, "e": {"d"}}) == {"b": ["b"], "d": ["c"], "e": ["c"]}
