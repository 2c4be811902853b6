"""The changes that a mutation run makes: each a small fault of logic, one at a time.

Why not cosmic-ray (8.7) or mutmut (3.8): neither removes a statement, and "the event is not cleared" or
"the files are not deleted" are the faults that matter here. cosmic-ray parses with parso, which does not
know `match`; it changes the working tree in place, and has one test command for all modules. mutmut leaves
out properties, other decorated functions and tables at module level; it draws no sample, and runs the whole
suite first. Python's own `ast` parses all that runs, and needs no package.

Messages, log lines, docstrings and annotations are left out on purpose: they decide nothing.
"""

import ast
import copy
from dataclasses import dataclass
from typing import TypeVar

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
Node = TypeVar("Node", bound=ast.AST)
_SWAPS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGS = {"log", "_log", "logger", "_logger"}


@dataclass(frozen=True)
class Change:
    """A node, and the text to put in its place; `after` is the same on one line, for people."""

    node: ast.expr | ast.stmt
    operator: str
    text: str
    after: str
    function: str
    last: int
    on_import: bool


def changes(source: str) -> list[Change]:
    """All changes of a module, in the order of its lines; some may give the same text."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    return finder.changes


def one_line(text: str, most: int = 160) -> str:
    """A piece of code without its line breaks, and cut where it is long."""
    one = " ".join(text.split())
    return one if len(one) <= most else f"{one[: most - 3]}..."


class _Finder(ast.NodeVisitor):
    """Walks a module and notes what can be changed."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._scope: list[str] = []
        self._last = 0
        self._functions = 0

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            self._last = (node.end_lineno or node.lineno) if not body else node.lineno
            if isinstance(body, list) and isinstance(body[0], ast.stmt):
                self._last = max(node.lineno, body[0].lineno - 1)
        for test in ("test", "guard"):
            if isinstance(condition := getattr(node, test, None), ast.expr):
                self._note(condition, "negation", ast.UnaryOp(ast.Not(), condition))
        super().visit(node)

    # What is left out.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words for people."""

    def visit_arg(self, node: ast.arg) -> None:
        """An annotation."""

    def visit_Import(self, node: ast.Import) -> None:
        """No decision."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """No decision."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """For the type checker."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Attribute | ast.Subscript) and node.value:
            self._remove(node)
        if node.value:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            self.changes = [change for change in self.changes if change.node is not node.test]
        else:
            self.generic_visit(node)

    # Where we are.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default:
                self.visit(default)
        self._functions += 1
        self._within(node.name, node.body)
        self._functions -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def _within(self, name: str, body: list[ast.stmt]) -> None:
        self._scope.append(name)
        for statement in body:
            self.visit(statement)
        self._scope.pop()

    # What is changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                self._note(node, "comparison", _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]]))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._note(node, "boolean", _with(node, op=other))
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            self._note(node, "condition removed", rest[0] if len(rest) == 1 else _with(node, values=rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._note(node, "sign", node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETIC.get(type(node.op))
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not _is_number(node.left)
        alias = isinstance(node.op, ast.BitOr) and not self._scope  # `Event = Made | Lost` is a type
        if other and not text and not alias:
            self._note(node, "arithmetic", _with(node, op=other()))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._remove(node)
        if other := _ARITHMETIC.get(type(node.op)):
            self._state(node, "arithmetic", _with(node, op=other()))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._note(node, "constant", ast.Constant(not node.value))
        elif _is_number(node):
            self._note(node, "number", ast.Constant(node.value + 1))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._note(condition, "negation", ast.UnaryOp(ast.Not(), condition))
            self._note(condition, "condition removed", ast.Constant(value=True))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and (other := _SWAPS.get(node.func.id)):
            self._note(node, "swap", _with(node, func=ast.Name(other)))
        if isinstance(node.func, ast.Name | ast.Attribute) and ast.unparse(node.func).endswith("replace"):
            for i, keyword in enumerate(node.keywords):
                rest = [*node.keywords[:i], *node.keywords[i + 1 :]]
                if keyword.arg:
                    self._note(node, "field not set", _with(node, keywords=rest))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._remove(node)
        elif not (
            isinstance(node.value, ast.Constant) and (node.value.value is None or _is_flag(node.value))
        ):
            self._state(node, "return", ast.Return(ast.Constant(None)))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call):
            return
        root = call.func
        while isinstance(root, ast.Attribute):
            if root.attr in _LOGS:
                return
            root = root.value
        if isinstance(root, ast.Name) and root.id in _LOGS:
            return
        self._remove(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._remove(node)
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._remove(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._remove(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._state(node, "loop", ast.Break())

    def visit_Break(self, node: ast.Break) -> None:
        self._state(node, "loop", ast.Continue())

    def _remove(self, node: ast.stmt) -> None:
        self._state(node, "removal", ast.Pass())

    def _state(self, node: ast.stmt, operator: str, other: ast.stmt) -> None:
        text = ast.unparse(ast.fix_missing_locations(other))
        self._add(node, operator, text, text)

    def _note(self, node: ast.expr, operator: str, other: ast.expr) -> None:
        after = ast.unparse(ast.fix_missing_locations(other))
        self._add(node, operator, after if isinstance(node, ast.Constant) else f"({after})", after)

    def _add(self, node: ast.expr | ast.stmt, operator: str, text: str, after: str) -> None:
        last = max(self._last, node.lineno)
        place = (".".join(self._scope), last, self._functions == 0)
        self.changes.append(Change(node, operator, text, one_line(after), *place))


def _with(node: Node, **fields: object) -> Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not _is_flag(node)
