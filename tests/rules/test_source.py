"""What no file of ours may contain, and how long it may be."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

LONGEST_FILE = 300
LONGEST_FUNCTION = 60
"""Bodies of Triton kernels are longer where a compiler wants one function."""
MOST_PACKED = 10
"""Statements that ruff does not lay out, in all folders together."""
BANNED_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
BANNED_BUILTINS = {"eval", "exec", "compile", "__import__"}
BANNED_ATTRIBUTES = {
    "send_pyobj", "recv_pyobj", "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
}  # fmt: skip
BANNED_CALLS = {"torch.load", "torch.save", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}
BANNED_KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}
BANNED_CLASS_WORDS = re.compile(r"(Manager|Helper|Helpers|Utils|Util)$")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")


PACKAGE = "quire.deploy.package"
"""The package `quire` itself, by its folder."""
CONVERTER = "worker/weights/convert.py"
"""The one that reads a pickle, for `quire convert`: a process that does nothing else."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def imported_roots(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def banned_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in BANNED_BUILTINS | BANNED_CALLS or attribute in BANNED_ATTRIBUTES:
            yield f"line {node.lineno}: {name or attribute}"
        for keyword in node.keywords:
            if keyword.arg in BANNED_KEYWORDS and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield f"line {node.lineno}: {keyword.arg}"


def ours(modules) -> list:
    return [module for module in modules.values() if not module.is_generated]


def test_no_object_deserialiser_is_imported(modules) -> None:
    wrong = [(m.short, root) for m in ours(modules) for root in imported_roots(m.tree) if root in BANNED_MODULES]
    assert wrong == []


def test_no_code_is_run_from_data(modules) -> None:
    wrong = [
        (module.short, call)
        for module in ours(modules)
        for call in banned_calls(module.tree)
        if not (module.short == CONVERTER and call.endswith(" torch.load"))
    ]
    assert wrong == []


def test_the_converter_reads_weights_alone_and_nothing_imports_it(modules, imports) -> None:
    (module,) = (one for one in modules.values() if one.short == CONVERTER)
    loads = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and dotted(node.func) == "torch.load"]
    (keyword,) = (keyword for load in loads for keyword in load.keywords if keyword.arg == "weights_only")
    assert len(loads) == 1
    assert ast.literal_eval(keyword.value) is True
    assert not [name for name, imported in imports.items() if module.name in imported]


def test_the_ban_sees_what_it_bans() -> None:
    code = "torch.load('x')\neval('1')\nmodel.eval()\nsocket.send_pyobj(1)\nf(trust_remote_code=True)\nrun(shell=False)"
    assert [call.split(": ")[1] for call in banned_calls(ast.parse(code))] == [
        "torch.load", "eval", "socket.send_pyobj", "trust_remote_code",
    ]  # fmt: skip
    assert list(imported_roots(ast.parse("import pickle\nfrom dill.x import y"))) == ["pickle", "dill"]


def test_no_error_is_swallowed(modules) -> None:
    wrong = []
    for module in ours(modules):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                silent = all(isinstance(line, ast.Pass) for line in node.body)
                if node.type is None or silent:
                    wrong.append(f"{module.short}:{node.lineno}")
    assert wrong == []


def test_nothing_is_unfinished(modules) -> None:
    wrong = []
    for module in ours(modules):
        text = module.path.read_text()
        wrong += [f"{module.short}: {match[0]}" for match in UNFINISHED.finditer(text)]
        if any(isinstance(node, ast.Name) and node.id == "NotImplementedError" for node in ast.walk(module.tree)):
            wrong.append(f"{module.short}: NotImplementedError")
    assert wrong == []


def test_files_are_short(modules) -> None:
    lengths = {module.short: len(module.path.read_text().splitlines()) for module in ours(modules)}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_functions_are_short(modules) -> None:
    """A Triton kernel is one function to its compiler, so its body may be longer."""
    long = [
        f"{module.short}:{node.lineno} {node.name}"
        for module in ours(modules)
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
        and not any(ast.unparse(mark).startswith("triton.jit") for mark in node.decorator_list)
    ]
    assert long == []


def test_few_statements_are_packed(modules) -> None:
    packed = [
        f"{module.short}:{number}"
        for module in ours(modules)
        for number, line in enumerate(module.path.read_text().splitlines(), 1)
        if line.rstrip().endswith(("# fmt: skip", "# fmt: off"))
    ]
    assert len(packed) <= MOST_PACKED, packed


def passes_on(node: ast.stmt) -> bool:
    """`from x import Y as Y`: a package that is one noun to those who import it."""
    return isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names)


def test_packages_hold_no_logic(modules) -> None:
    packages = [module for module in modules.values() if module.path.name == "__init__.py"]
    assert packages
    for package in packages:
        rest = [node for node in package.tree.body if not isinstance(node, ast.Expr) and not passes_on(node)]
        assert rest == [], f"{package.short}: only a docstring, and names passed on"


def test_every_module_says_what_it_is(modules) -> None:
    assert [module.short for module in ours(modules) if not ast.get_docstring(module.tree)] == []


def test_public_names_of_the_contract_and_the_kernels_are_documented(modules) -> None:
    wrong = []
    for module in ours(modules):
        if module.folder not in ("proto", "kernels"):
            continue
        for node in module.tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            says_itself = isinstance(node, ast.FunctionDef) and len(node.body) == 1  # name, types and one statement
            if not node.name.startswith("_") and not says_itself and not ast.get_docstring(node):
                wrong.append(f"{module.short}:{node.lineno} {node.name}")
    assert wrong == []


def test_no_class_is_named_after_nothing(modules) -> None:
    wrong = [
        f"{module.short}: {node.name}"
        for module in ours(modules)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and BANNED_CLASS_WORDS.search(node.name)
    ]
    assert wrong == []


def test_no_test_is_skipped(root: Path) -> None:
    wrong = []
    skips = ("pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.xfail")
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text()
        if not any(one in text for one in skips):  # to parse them all takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            name = dotted(node) if isinstance(node, ast.Attribute) else ""
            if name in skips:
                wrong.append(f"{path.relative_to(root)}:{node.lineno} {name}")
    assert wrong == []


def test_every_package_is_installed(root: Path, modules) -> None:
    listed = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {name for name, module in modules.items() if module.path.name == "__init__.py"}
    itself = {f"quire{name.removeprefix(PACKAGE)}" for name in found if name.startswith(PACKAGE)}
    assert listed == found | itself
