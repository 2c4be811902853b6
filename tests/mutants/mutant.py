"""One mutant: a module of ours with one small change."""

import ast
import itertools
from dataclasses import dataclass

from tests.mutants.operators import changes, one_line


@dataclass(frozen=True)
class Mutant:
    """One changed module.

    Attributes:
        module: Its path from the root of the repository.
        function: The qualified name of the function or class changed; empty at module level.
        line: Where the change is.
        last: Where the statement around it ends (of a compound one: its header).
        operator: The kind of change.
        before: The code as it was, in Python's own layout.
        after: The code as it is.
        number: Which of several equal changes in functions of that name, from 0.
        on_import: Whether the statement runs when the module is imported, and not in a function.
        source: The whole changed module.
    """

    module: str
    function: str
    line: int
    last: int
    operator: str
    before: str
    after: str
    number: int
    on_import: bool
    source: str

    @property
    def key(self) -> str:
        """Its name, which stays the same while lines around it move and its class is renamed."""
        function = self.function.rpartition(".")[2]
        return f"{self.module} {function} | {self.before} -> {self.after} #{self.number}"


def mutants(module: str, source: str) -> list[Mutant]:
    """All changes of a module, in the order of its lines; two that give the same text are one."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(len(line) for line in lines)]
    raw = source.encode()
    found: list[Mutant] = []
    texts = {source}
    numbers: dict[tuple[str, str, str], int] = {}
    for change in changes(source):
        node = change.node
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        text = (raw[:begin] + change.text.encode() + raw[end:]).decode()
        if text in texts:
            continue
        texts.add(text)
        before = one_line(ast.unparse(node))
        name = (change.function.rpartition(".")[2], before, change.after)
        number = numbers[name] = numbers.get(name, -1) + 1
        place = (module, change.function, node.lineno, change.last, change.operator)
        found.append(Mutant(*place, before, change.after, number, change.on_import, text))
    return found
