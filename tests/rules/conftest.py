"""The source tree as the rules see it: every module of the six folders, parsed once."""

import sys
from pathlib import Path

import pytest
from parts.import_graph import ROOT, Module, imported_modules, product_modules

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Module]:
    """Every module by name, generated ones too."""
    return product_modules()


@pytest.fixture(scope="session")
def imports(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Module -> modules of ours it imports, deferred, type-only and by name included."""
    return {name: imported_modules(module, modules) for name, module in modules.items()}
