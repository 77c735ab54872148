"""The source tree as its imports join it: every module of the six folders, and which files a test file reaches."""

import ast
import functools
import gc
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from parts.import_by_name import constants_of, dynamic_imports, is_import_module

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FOLDERS = ("proto", "frontend", "scheduler", "worker", "kernels", "deploy")
_SHADOWED = "node_modules"
STARTS = {"deploy/commands/serve.py": ("quire.scheduler", "quire.worker", "quire.frontend")}
"""Who starts modules as programs by names that stand in no text."""
_AHEAD = ("becoming.py", "fork_server.py", "import_graph.py", "nursery.py")
"""Those of tests/parts that name what others use: a test reaches what it names itself, not all that."""


@dataclass(frozen=True)
class Module:
    name: str
    """`quire.worker.layers.linear`; a package is named without `__init__`."""
    path: Path
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.name.split(".")[1]

    @property
    def short(self) -> str:
        """Path from the root, for messages."""
        return str(self.path.relative_to(ROOT))

    @property
    def is_generated(self) -> bool:
        return self.name.startswith("quire.proto.generated")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("quire", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@functools.cache
def paths_of_modules() -> dict[str, Path]:
    """Every module's file by name, and the package of all, which lies with deploy."""
    paths = {name_of(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}
    return paths | {"quire": ROOT / "deploy" / "package" / "__init__.py"}


@functools.cache
def product_modules() -> dict[str, Module]:
    """Every module by name, generated ones too."""
    # What the collector finds may print a traceback, which parses lines of code too: Python 3.11 up to .7 then raises
    # "AST constructor recursion depth mismatch" for the file that was being parsed.
    gc.disable()
    try:
        paths = {name: path for name, path in paths_of_modules().items() if name != "quire"}
        return {name: Module(name, path, ast.parse(path.read_text())) for name, path in paths.items()}
    finally:
        gc.enable()


def imported_modules(module: Module, modules: Mapping[str, object]) -> set[str]:
    """The modules of ours that a module imports, deferred, type-only and by name included."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.short}: relative import; write quire.<folder>"
        found |= set(_names(node, module.tree, modules))
    return {name for name in found if name == "quire" or name.startswith("quire.")}


def _names(node: ast.AST, tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """What a node imports; `from a import b` is a.b if that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules else node.module or ""
    elif isinstance(node, ast.Call) and is_import_module(node.func) and node.args:
        yield from dynamic_imports(node.args[0], constants_of(tree), modules)


@functools.cache
def imports_of(file: Path) -> frozenset[Path]:
    """The files of ours that a file imports, or names in a text: what it starts as a process or reads.

    A test imports from its folder, those above it and tests/; what none of them has may lie in any folder of tests.
    """
    tree = ast.parse(file.read_text())
    modules = paths_of_modules()
    found: set[Path] = set()
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings mean no file
    for node in () if file.name in _AHEAD else ast.walk(tree):
        for name in _names(node, tree, modules):
            found |= _of_product(name) if name.split(".")[0] == "quire" else _of_tests(name, file)
        if isinstance(node, ast.ImportFrom) and file.is_relative_to(TESTS):
            for alias in node.names:
                found |= _of_tests(f"{node.module}.{alias.name}", file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            found |= _named(node.value, file)
    for name in STARTS.get(str(file.relative_to(ROOT)), ()):
        found |= _of_product(name)
    return frozenset(found - {file})


def _of_product(name: str) -> set[Path]:
    """The files that importing a module runs: its packages, too; of a package that is named as a program, its main."""
    modules = paths_of_modules()
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return {modules[one] for one in (*above, f"{name}.__main__") if one in modules}


def _of_tests(name: str, file: Path) -> set[Path]:
    if not file.is_relative_to(TESTS):
        return set()
    places = [folder for folder in file.parents if folder.is_relative_to(TESTS)]
    inner = name.replace(".", "/") + ".py"
    found = [place / inner for place in places if (place / inner).is_file()]
    is_folder = any((place / inner.removesuffix(".py")).is_dir() for place in places)
    return set(found[:1]) if found or is_folder or "/" in inner else set(_files_of_tests().get(inner, ()))


@functools.cache
def _files_of_tests() -> dict[str, list[Path]]:
    """The Python files of tests by their own names; each folder's conftest belongs to what lies below it alone."""
    found: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if _SHADOWED not in path.parts and path.name != "conftest.py":
            found.setdefault(path.name, []).append(path)
    return found


def _named(text: str, file: Path) -> set[Path]:
    """What a text names: modules ("quire.deploy.__main__", "-m", an operation's form), scripts, files beside it."""
    found: set[Path] = set()
    modules = paths_of_modules()
    for name in re.findall(r"\bquire(?:\.\w+)+", text):
        while name not in modules:
            name = name.rpartition(".")[0]
        found |= _of_product(name)
    names = re.findall(r"[\w./-]+\.\w+", text) if file.is_relative_to(TESTS) and len(text) < 1000 else ()
    for name in names:
        if Path(name).name.startswith(("test_", "sitecustomize")):  # of a list of tests; what an interpreter looks for
            continue
        places = (file.parent, ROOT, TESTS)
        beside = [place / name for place in places if (place / name).is_file()]
        found |= set(beside[:1]) or (set(_files_of_tests().get(name, ())) if name.endswith(".py") else set())
    return {path.resolve() for path in found if path.resolve().is_relative_to(ROOT)}


def reached_by(test_file: Path) -> set[Path]:
    """Every file of product and tests that a test file's imports reach, with itself, the conftests above it, and what
    else than Python lies beside a reached file (records, sources in C++, pages).

    What walks the tree (tests/rules) or calls an installed program by its name reaches more than its text says.
    """
    test_file = test_file.resolve()
    above = [folder / "conftest.py" for folder in test_file.parents if folder.is_relative_to(TESTS)]
    ahead = [test_file, *(path for path in above if path.is_file())]
    reached: set[Path] = set()
    while ahead:
        path = ahead.pop()
        if path in reached:
            continue
        reached.add(path)
        if path.suffix == ".py":
            ahead += imports_of(path)
    return reached.union(*map(_beside, {path.parent for path in reached if path.suffix == ".py"}))


@functools.cache
def _beside(folder: Path) -> frozenset[Path]:
    """The files of a folder that are not Python, and of folders in it that hold no Python."""
    found: set[Path] = set()
    if folder in (ROOT, TESTS):
        return frozenset()
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so"):
            found.add(path)
        elif path.is_dir() and path.name not in (_SHADOWED, "__pycache__") and not list(path.glob("*.py")):
            found |= _beside(path)
    return frozenset(found)
