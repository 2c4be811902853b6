"""Counts of the structure, for ADR 35: ``python tests/architecture/structure.py [CHECKOUT]``."""

import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import test_arch_wiring as wiring


def count(root: Path) -> dict[str, object]:
    """The figures of the ADR's table, for the checkout at ``root``."""
    wiring.ROOT = root.resolve()
    trees = wiring.trees()
    files = [file for package in wiring.PACKAGES for file in (wiring.ROOT / package).rglob("*.py")]
    counted = [file for file in files if file.name not in {"__init__.py", "setup.py"}]
    folders = Counter(file.parent for file in counted)
    fields = {name for tree in trees.values() for name in wiring.fields_of(tree)}
    methods = {name for tree in trees.values() for name in wiring.methods_of(tree)}
    functions = (n for t in trees.values() for n in wiring.nodes_of(t) if isinstance(n, wiring.Function))
    sizes = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    lines: Counter[str] = Counter()
    for file in files:
        lines[file.relative_to(wiring.ROOT).parts[0]] += file.read_text().count("\n")
    return {
        "folders": len(folders),
        "folders with more than 12 files": sum(number > 12 for number in folders.values()),
        "import circles": len(wiring.circles(wiring.graph())),
        "late callables": sum(len(wiring.late(tree, methods, fields)) for tree in trees.values()),
        "imports for types alone": sum(
            only and module.split(".")[0] in wiring.PACKAGES
            for tree in trees.values()
            for module, _, only in wiring.imports(tree)
        ),
        "class names of two or more classes": sum(
            len(modules) > 1 for modules in wiring.modules_by_class().values()
        ),
        "functions: median": statistics.median(sizes),
        "functions: 90th percentile": sizes[int(0.9 * len(sizes))],
        "functions above 60 lines": sum(size > 60 for size in sizes),
        "lines": sum(lines.values()),
        "lines by package": dict(lines),
    }


if __name__ == "__main__":
    for what, number in count(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{what}: {number}")  # noqa: T201 - a program that prints
