"""The source tree as the rules see it: every module of the six folders, parsed once."""

import ast
import gc
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from import_by_name import constants_of, dynamic_imports, is_import_module

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "frontend", "scheduler", "worker", "kernels", "deploy")


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


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Module]:
    """Every module by name, generated ones too."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    # What the collector finds may print a traceback, which parses lines of code too: Python 3.11 up to .7 then raises
    # "AST constructor recursion depth mismatch" for the file that was being parsed.
    gc.disable()
    try:
        return {name_of(path): Module(name_of(path), path, ast.parse(path.read_text())) for path in paths}
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def imports(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Module -> modules of ours it imports, deferred, type-only and by name included."""
    return {name: _imports(module, modules) for name, module in modules.items()}


def _imports(module: Module, modules: dict[str, Module]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.short}: relative import; write quire.<folder>"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module or "")
        elif isinstance(node, ast.Call) and is_import_module(node.func):
            found.update(dynamic_imports(node.args[0], constants_of(module.tree), modules))
    return {name for name in found if name == "quire" or name.startswith("quire.")}
