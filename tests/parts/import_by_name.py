"""What a call of `import_module` imports, as far as the text of its argument is known."""

import ast
from collections.abc import Iterable


def is_import_module(function: ast.expr) -> bool:
    """`importlib.import_module` and `__import__`, by whatever name of the first the module has imported."""
    return ast.unparse(function).rpartition(".")[2] in ("import_module", "__import__")


def constants_of(tree: ast.Module) -> dict[str, str]:
    """Names that a module binds to a text at its top."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def dynamic_imports(argument: ast.expr, constants: dict[str, str], modules: Iterable[str]) -> set[str]:
    """The modules that a name given to `import_module` may mean, as far as its text is known: all with its prefix."""
    if isinstance(argument, ast.IfExp):
        branches = (argument.body, argument.orelse)
        return set().union(*(dynamic_imports(branch, constants, modules) for branch in branches))
    prefix, is_whole = known_prefix(argument, constants)
    if is_whole:
        return {prefix}
    return {name for name in modules if name.startswith(prefix)} if prefix else set()


def known_prefix(text: ast.expr, constants: dict[str, str]) -> tuple[str, bool]:
    """The known beginning of a text, and whether it is all of it."""
    if isinstance(text, ast.Constant):
        return str(text.value), True
    if isinstance(text, ast.Name) and text.id in constants:
        return constants[text.id], True
    parts: list[ast.expr] = []
    if isinstance(text, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in text.values]
    elif isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        parts = [text.left, text.right]
    known = ""
    for part in parts:
        more, is_whole = known_prefix(part, constants)
        known += more
        if not is_whole:
            return known, False
    return known, bool(parts)
