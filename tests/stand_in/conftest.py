"""One cache of compiled kernels for all that runs on a stand-in, begun with the record: the compiler takes minutes."""

import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import compile_record


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Path:
    """Triton's cache, the same for every process of this run of the tests; Triton allows several users at once."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    with FileLock(f"{cache}.lock"):
        if not cache.exists():
            compile_record.fill(cache)
    return cache
