"""What a test file reaches, by which `make test-changed` and CI choose files."""

import pytest
from parts.import_graph import ROOT, reached_by


@pytest.mark.parametrize(
    ("test", "reached", "not_reached"),
    [
        (
            "tests/scheduler/test_audit.py",
            # itself, what it imports and that imports, conftests above it, modules beside it, a package's own file
            ["tests/scheduler/test_audit.py", "scheduler/audit.py", "scheduler/state/memory.py", "tests/conftest.py",
             "tests/scheduler/stepped_core.py", "tests/parts/clock.py", "scheduler/__init__.py", "proto/quire.proto"],
            ["worker/loop.py", "frontend/server.py", "tests/scheduler/test_loop.py"],
        ),
        (
            "tests/sim/test_sim.py",
            ["tests/sim/run.py", "tests/sim/world.py", "scheduler/core/core.py"],  # a script that it starts
            ["worker/loop.py", "tests/frontend/conftest.py"],
        ),
        (
            "tests/system/test_conformance.py",  # engines are all processes
            ["scheduler/core/core.py", "worker/loop.py", "frontend/media/families/gemma4.py", "proto/prefix_key.py"],
            ["tests/sim/run.py"],
        ),
        (
            "tests/proto/transport/test_wire.py",
            ["tests/proto/golden_messages.json", "tests/parts/golden.py", "proto/transport/wire.py"],  # what it reads
            ["scheduler/loop.py"],
        ),
    ],
)  # fmt: skip
def test_a_test_file_reaches_what_it_imports_starts_and_reads(test, reached, not_reached):
    found = {str(path.relative_to(ROOT)) for path in reached_by(ROOT / test)}
    assert [path for path in reached if path not in found] == []
    assert [path for path in not_reached if path in found] == []
