"""The places of a module where a fault can be drawn: a kind, a span of the source and what stands there then."""

import ast
import dataclasses
from collections.abc import Iterator

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
QUIET = {"debug", "info", "warning", "error", "exception", "print", "log", "fail", "warn"}
"""Calls whose arguments only a reader sees."""
AXES = {"dim", "axis"}
AXIS_CALLS = {"transpose", "flatten", "unsqueeze", "squeeze", "cumsum", "argmax", "chunk", "movedim", "unflatten"}
TAKES_AXIS_FIRST = {"sum", "amax", "amin", "mean", "softmax", "size", "select", "narrow", "gather", "index_select"}

FEW = (ast.Starred, ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Lambda)
"""Arguments whose exchange with a neighbour nobody would write."""


@dataclasses.dataclass(frozen=True)
class Site:
    kind: str
    start: int
    """Offsets in the source."""
    end: int
    text: str
    """What replaces source[start:end]."""


class Sites(ast.NodeVisitor):
    """The sites of one module, in the order of its text."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines(keepends=True)
        self.found: list[Site] = []

    def _at(self, line: int, column: int) -> int:
        """The offset of a place that the tree gives in bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _add(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append(Site(kind, *self._span(node), text))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """`old` between two nodes becomes `new`."""
        start, end = self._span(left)[1], self._span(right)[0]
        place = self._source.find(old, start, end)
        if place >= 0:
            self.found.append(Site(kind, place, place + len(old), new))

    # -- what is passed by

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_body  # no decorator, annotation or default

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text with values in it is mostly a message."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assert is our own check of ourselves."""

    # -- statements

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and _name(call.func) not in QUIET:
            self._add("dropped call", node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("dropped raise", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, (ast.Compare, ast.BoolOp)):
            self._add("returned value", node.value, f"not ({self._text(node.value)})")
        elif isinstance(node.value, (ast.Call, ast.Name, ast.BinOp, ast.Attribute)):
            self._add("returned value", node.value, "None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).startswith("__name__"):
            return
        self._add("negated test", node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("negated test", node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    # -- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            left, right = self._span(node.left)[1], self._span(node.comparators[0])[0]
            old = self._source[left:right].strip().strip("()").strip()
            self._between("comparison", node.left, node.comparators[0], old, COMPARISONS[type(node.ops[0])])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        if len(node.values) == 2:
            self._between("and/or", node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [one for one in (node.left, node.right) if isinstance(one, (ast.JoinedStr, ast.List, ast.Tuple))]
        texts += [
            one for one in (node.left, node.right) if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if isinstance(node.op, (ast.Add, ast.Sub)) and not texts:
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            self._between("plus/minus", node.left, node.right, old, new)
        elif isinstance(node.op, ast.FloorDiv):
            self._add("off by one", node, f"({self._text(node)} + 1)")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int and node.value < 1 << 16:
            self._add("off by one", node, str(node.value + 1))
        elif type(node.value) is bool:
            self._add("turned boolean", node, str(not node.value))

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in QUIET:
            return
        if isinstance(node.func, ast.Name) and name in ("min", "max"):
            self._add("min/max", node.func, "max" if name == "min" else "min")
        self._visit_axes(node, name)
        for one, other in zip(node.args, node.args[1:], strict=False):
            if not isinstance(one, FEW) and not isinstance(other, FEW):
                start, end = self._span(one)[0], self._span(other)[1]
                middle = self._source[self._span(one)[1] : self._span(other)[0]]
                self.found.append(Site("swapped arguments", start, end, self._text(other) + middle + self._text(one)))
        if len(node.keywords) >= 2 and name[:1].isupper():
            for keyword in node.keywords:
                if keyword.arg is not None:
                    start, end = self._span(keyword)
                    self.found.append(Site("field not copied", start, self._behind_comma(end), ""))
        self.generic_visit(node)

    def _visit_axes(self, node: ast.Call, name: str) -> None:
        axes = [keyword.value for keyword in node.keywords if keyword.arg in AXES]
        if isinstance(node.func, ast.Attribute):
            axes += node.args if name in AXIS_CALLS else node.args[:1] if name in TAKES_AXIS_FIRST else []
        for axis in axes:
            text = self._text(axis)
            if text.lstrip("-").isdigit():
                self._add("axis", axis, {"-1": "0", "0": "-1", "1": "0", "-2": "-1"}.get(text, str(int(text) - 1)))

    def visit_Dict(self, node: ast.Dict) -> None:
        if len(node.keys) >= 2:
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    start = self._span(key)[0]
                    self.found.append(Site("field not copied", start, self._behind_comma(self._span(value)[1]), ""))
        self.generic_visit(node)

    def _behind_comma(self, end: int) -> int:
        rest = self._source[end:]
        return end + len(rest) - len(rest.lstrip(" \n").removeprefix(",").lstrip(" ")) if "," in rest[:3] else end


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def sites(source: str) -> Iterator[Site]:
    visitor = Sites(source)
    visitor.visit(ast.parse(source))
    for site in visitor.found:
        changed = source[: site.start] + site.text + source[site.end :]
        try:
            ast.parse(changed)
        except SyntaxError:
            continue
        if source[site.start : site.end] != site.text:
            yield site
