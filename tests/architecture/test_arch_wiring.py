"""Wiring of parts: nothing is put into an object after its construction, and no import is circular."""

import ast
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "protocol",
    "runtime",
    "models",
    "export",
    "edge_agent",
    "coordinator",
    "console",
    "lichen",
    "lichen_lab",
)
SHARED_NAMES = {
    "LocalTraining": "each method's folder has a class of that role in the same place",
}
"""Public classes of one name in several modules, each with its reason."""
FOR_TYPES_ALONE = 16
"""Imports of our modules under ``TYPE_CHECKING``: most of them hide a circle."""


@cache
def tree_of(file: Path) -> ast.Module:
    """A file, parsed once for all rules of this process."""
    return ast.parse(file.read_bytes())


@lru_cache(1)
def trees() -> dict[str, ast.Module]:
    """Every production file, parsed, by its module's name."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    names = {file: file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in files}
    return {name.removesuffix(".__init__"): tree_of(file) for file, name in names.items()}


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules_by_class() -> dict[str, set[str]]:
    """Public class -> the modules that define one with this name."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(module)
    return found


def methods_of(tree: ast.Module) -> set[str]:
    """Names of methods: as values they are callables."""
    classes = [one for one in nodes_of(tree) if isinstance(one, ast.ClassDef)]
    return {
        one.name
        for cls in classes
        for one in cls.body
        if isinstance(one, Function) and "property" not in map(ast.unparse, one.decorator_list)
    }


def fields_of(tree: ast.Module) -> set[str]:
    """Names of properties, and of attributes that hold values."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, Function) and "property" in map(ast.unparse, node.decorator_list):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            found.add(node.target.id if isinstance(node.target, ast.Name) else ast.unparse(node.target))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def functions_of(tree: ast.Module) -> set[str]:
    """Names of functions, nested ones too, that are not names of variables as well."""
    nodes = nodes_of(tree)
    variables = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    variables |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    return {one.name for one in nodes if isinstance(one, Function)} - variables - methods_of(tree)


def is_callable(value: ast.expr, methods: set[str], own: set[str]) -> bool:
    """Whether a value is a function, a method, a wrapper of one, or the object itself."""
    match value:
        case ast.Lambda() | ast.Name(id="self") | ast.Call(func=ast.Name(id="partial")):
            return True
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in own
        case ast.Attribute(attr=name):
            return name in methods
        case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
            return any(is_callable(each, methods, own) for each in (one, other))
    return False


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) pairs of an assignment of one value or of a tuple."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from pairs(one, other)
    else:
        yield target, value


def assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [pair for target in node.targets for pair in pairs(target, node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    return []


def is_ours(target: ast.expr, names: set[str]) -> bool:
    """Whether it is an attribute of an object of ours other than ``self``; ``names``: imported modules.

    Exceptions: paho calls the ``on_...`` of its client, and a simulated clock replaces that of ``time``.
    """
    if not isinstance(target, ast.Attribute):
        return False
    if target.attr.startswith("on_") and any(name.startswith("paho.") for name in names):
        return False
    return not (isinstance(target.value, ast.Name) and target.value.id in {"self", "cls", *names})


def late(tree: ast.Module, methods: set[str], fields: set[str]) -> list[int]:
    """Lines that put a callable into an object that the function did not get as ``self``.

    ``part.a = other.b`` may be data if some class has a field ``b``; ``self.part.a = ...`` is not.
    """
    own, found = functions_of(tree) | methods_of(tree), set()
    modules = {alias.name for one in nodes_of(tree) if isinstance(one, ast.Import) for alias in one.names}
    for node in nodes_of(tree):
        for target, value in assigned(node):
            if not is_ours(target, modules):
                continue
            known = methods if ast.unparse(target).startswith("self.") else methods - fields
            if is_callable(value, known, own):
                found.add(node.lineno)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="vars")), attr="update")):
                found.add(node.lineno)
            case ast.Call(func=ast.Name(id="setattr"), args=[of, _, value]):
                if ast.unparse(of) != "self" and is_callable(value, methods, own):
                    found.add(node.lineno)
    return sorted(found)


def test_arch_what_the_rule_against_late_callables_finds() -> None:
    wrong = """
class Part:
    def __init__(self, other):
        self.other = other
        other.listener = self.hear
        other.owner = self
    def hear(self): ...
    def wire(self, other):
        self.other.listener = lambda: None
        other.a, other.b = 1, self.hear
        vars(other).update(hear=self.hear)
        setattr(other, "hear", self.hear)
        self.other.said = other.hear
"""
    right = """
class Part:
    def __init__(self, other, hear):
        self.other, self.hear = other, hear
        self.said = other.said
        other.count = 1
"""
    known = methods_of(ast.parse(wrong))
    assert late(ast.parse(wrong), known, set()) == [5, 6, 9, 10, 11, 12, 13]
    assert late(ast.parse(right), known, set()) == []


def test_arch_no_callable_is_put_into_an_object_that_was_made_elsewhere() -> None:
    fields = {name for tree in trees().values() for name in fields_of(tree)}
    methods = {name for tree in trees().values() for name in methods_of(tree)}
    found = {name: lines for name, tree in trees().items() if (lines := late(tree, methods, fields))}
    assert not found, f"hand it to the constructor, or to run(): {found}"


def for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Module, names imported from it, and whether for types alone; at the file's level."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.If | ast.Try) else [node]:
            if isinstance(one, ast.ImportFrom) and one.module:
                yield one.module, tuple(alias.name for alias in one.names), for_types(node)
            elif isinstance(one, ast.Import):
                for alias in one.names:
                    yield alias.name, (), for_types(node)


def graph() -> dict[str, set[str]]:
    """Module -> modules that it imports."""
    names, found = trees().keys(), {}
    for name, tree in trees().items():
        needs: set[str] = set()
        for module, taken, _ in imports(tree):
            inner = {f"{module}.{one}" for one in taken} & names
            needs |= inner if taken and len(inner) == len(taken) else inner | ({module} & names)
        found[name] = needs - {name}
    return found


def reached(needs: dict[str, set[str]], start: str) -> set[str]:
    """Modules that can be reached from one; itself only if a circle leads back."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = needs.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def circles(needs: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that all reach each other."""
    while ends := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in ends}
    leads = {name: reached(needs, name) for name in needs}
    groups = {frozenset(one for one in leads[name] if name in leads.get(one, ())) for name in needs}
    return groups - {frozenset()}


def test_arch_no_file_needs_one_that_needs_it() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset("bc")}
    found = [sorted(one) for one in circles(graph())]
    assert not found, f"import circles: {found}"


def test_arch_imports_for_types_alone_get_fewer() -> None:
    found = [(name, module) for name, tree in trees().items() for module, _, only in imports(tree) if only]
    ours = [one for one in found if one[1].split(".")[0] in PACKAGES]
    assert len(ours) <= FOR_TYPES_ALONE, f"{len(ours)}: {ours}"


def test_arch_a_class_name_names_one_class_but_for_those_with_a_reason() -> None:
    shared = {name: sorted(modules) for name, modules in modules_by_class().items() if len(modules) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared
