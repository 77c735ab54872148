"""Who may import whom: the table of the architecture, the floors inside worker and scheduler, no circles, no torch."""

import graphlib
import subprocess
import sys

import pytest

ALLOWED = {
    "proto": set(),
    "frontend": {"proto"},
    "scheduler": {"proto"},
    "worker": {"proto", "kernels"},
    "kernels": set(),
    "deploy": {"proto"},
}
DEPLOY_MAY_READ = {"quire.frontend.config", "quire.scheduler.config", "quire.worker.config"}

# Upper floors first; a module imports its own floor and those below. A package stands on one floor as a whole.
WORKER_FLOORS = (
    {"__main__", "bench", "inspect", "fixed_time", "machine"},
    {"start"},
    {"loop", "rehearsal"},
    {"runner"},
    {"pooler"},
    {"graphs"},
    {"inputs"},
    {"models"},
    {"layers", "weights"},
    {"attention", "build"},
    {"quant"},
    {"memory", "sampling"},
    {"grammar"},
    {"kv_cache", "slots", "parallel", "logprobs", "facts", "growth"},
    {"sampling_table"},
    {"staging"},
    {"batch", "device", "shard", "collector", "background"},
    {"config", "cores"},
)
SCHEDULER_FLOORS = (
    {"__main__", "bench"},
    {"loop"},
    {"invariants", "outside", "intake", "watch"},
    {"group", "leases"},
    {"own_time"},
    {"core"},
    {"report"},
    {"figures", "status", "explain"},
    {"load"},
    {"view"},
    {"ledger"},
    {"outputs"},
    {"policy", "results", "timeline", "deadlines", "admission"},
    {"prefill"},
    {"gate"},
    {"era"},
    {"memory", "pipeline", "running", "waiting"},
    {"order"},
    {"sequence", "registry"},
    {"prefix", "blocks", "story", "counters"},
    {"events", "config", "faults", "histogram", "busy"},
)


def floor_of(name: str, floors: tuple[set[str], ...]) -> int:
    part = name.split(".")[2]
    found = [number for number, floor in enumerate(floors) if part in floor]
    assert len(found) == 1, f"{name}: give it a floor in tests/rules/test_imports.py"
    return found[0]


def test_folders_import_only_what_the_table_allows(imports) -> None:
    wrong = []
    for name, imported in imports.items():
        folder = name.split(".")[1]
        for other in imported:
            other_folder = other.split(".")[1] if "." in other else ""
            allowed = other_folder == folder or other_folder in ALLOWED[folder]
            if not allowed and not (folder == "deploy" and other in DEPLOY_MAY_READ):
                wrong.append(f"{name} imports {other}")
    assert wrong == []


@pytest.mark.parametrize(("folder", "floors"), [("worker", WORKER_FLOORS), ("scheduler", SCHEDULER_FLOORS)])
def test_imports_run_downward_inside(imports, folder: str, floors: tuple[set[str], ...]) -> None:
    prefix = f"quire.{folder}."
    wrong = []
    for name, imported in imports.items():
        if not name.startswith(prefix):
            continue
        for other in imported:
            if other.startswith(prefix) and floor_of(other, floors) < floor_of(name, floors):
                wrong.append(f"{name} imports upward {other}")
    assert wrong == []


def test_there_is_no_import_circle(imports) -> None:
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(f"import circle: {' -> '.join(error.args[1])}") from error


@pytest.mark.parametrize("folder", ["proto", "frontend", "scheduler"])
def test_torch_and_transformers_stay_out(modules, folder: str) -> None:
    names = [name for name in modules if name.startswith(f"quire.{folder}") and not name.endswith("__main__")]
    assert names
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, quire.deploy.__main__\nprint(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_an_engine_on_the_cpu_starts_without_triton(modules) -> None:
    """Every module but the kernels for GPUs and what measures or trains; then an engine up to its first steps."""
    aside = ("quire.kernels.gpu", "quire.kernels.bench", "quire.deploy.train_model")
    names = [name for name in modules if not name.startswith(aside) and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        "from pathlib import Path\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
        "from quire.worker.config import WorkerConfig\n"
        "from quire.worker.device import Device\n"
        "from quire.worker.parallel import SingleGroup\n"
        "from quire.worker.start import start\n"
        "config = WorkerConfig(model=sys.argv[1], device='cpu', max_num_seqs=4, kv_cache_memory_bytes=8 << 20)\n"
        "start(config, 0, Device('cpu', 0), SingleGroup)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'triton', 'transformers'}))"
    )
    model = modules["quire.deploy"].path.parent / "model"
    command = [sys.executable, "-P", "-c", code, str(model), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
