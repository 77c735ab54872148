"""Who may import whom: the table of the architecture, the floors inside each folder, no circles, no torch."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from parts.import_by_name import constants_of, dynamic_imports, is_import_module

ALLOWED = {
    "proto": set(),
    "frontend": {"proto"},
    "scheduler": {"proto"},
    "worker": {"proto", "kernels"},
    "kernels": set(),
    "deploy": {"proto"},
}
DEPLOY_MAY_READ = {
    "quire.frontend.config",
    "quire.scheduler.config",
    "quire.worker.config",
    "quire.worker.device.machine",
    "quire.worker.specs.fit",
    "quire.worker.specs.needs",
    "quire.worker.weights.gguf.files",
    "quire.worker.weights.gguf.header",
    "quire.worker.weights.gguf.names",
    "quire.worker.weights.header",
    "quire.worker.weights.parts",
}

MOST_FLOORS = 8
FLOORS = {
    "frontend": (
        {"__main__", "server"},
        {"grpc", "http"},
        {"context", "health", "request"},
        {"telemetry"},
        {"stream", "chat", "media"},
        {"text"},
        {"metrics", "security", "sandbox", "ready_file"},
        {"limits", "parsing", "call", "config", "errors", "fault_log"},
    ),
    "frontend.http": (
        {"app", "listener"},
        {"ollama", "openapi"},
        {"openai", "anthropic", "native", "routing", "score"},
        {"fields"},
        {"body", "connection", "guard", "sse"},
        {
            "answer",
            "call",
            "connection_limits",
            "decoding",
            "errors",
            "framing",
            "merge",
            "meter",
            "overload",
            "stall_watch",
        },
    ),
    "scheduler": (
        {"__main__", "bench", "loop"},
        {"audit", "sender"},
        {"introspection", "peers"},
        {"core"},
        {"state"},
        {"buckets", "config", "errors", "kv_groups"},
    ),
    "scheduler.core": (
        {"invariants"},
        {"core"},
        {"lifecycle"},
        {"drain"},
        {"live_requests", "policy"},
        {"effects", "prefill", "step_log"},
        {"accept", "admission", "device_busy", "gate", "media"},
        {"block_invariants", "siblings"},
    ),
    "scheduler.state": (
        {"epoch"},
        {"in_flight", "waiting"},
        {"deadlines", "encoder_memory", "memory", "registry", "running", "sorted_list"},
        {"counters", "sequence"},
        {"blocks", "events", "prefix", "request_log"},
    ),
    "worker": (
        {"__main__", "rank", "start", "bench", "inspect"},
        {"build_media", "build_runner", "calibrate", "library_trial", "loop", "warm_up"},
        {"models", "step"},
        {"layers", "media", "sampling"},
        {"build_context", "memory", "tables"},
        {"device", "digest", "specs"},
        {"quant"},
        {"batch", "config", "fields", "weights"},
    ),
    "deploy": (
        {"container", "package"},
        {"__main__"},
        {"bench"},
        {"commands"},
        {"config"},
        {"batch", "converted_tokenizer", "model_path", "overrides", "supervisor"},
        {"hub"},
        {"bundle", "flags", "gguf", "module_names", "training", "weight_files"},
    ),
    "kernels": (
        {"bench", "catalog", "cpu", "gpu"},
        {"attention", "experts"},
        {"linear", "prepare_inputs", "rows", "sampling"},
        {"checks", "chips", "dispatch"},
    ),
    "kernels.gpu": (
        {"aot", "tuning"},
        {"experts", "quantized"},
        {"attention", "linear", "prepare_inputs", "sampling"},
        {"prefill_switch"},
        {"chip", "tile_table"},
    ),
    "proto": (
        {"client"},
        {"grpc_map", "grpc_status"},
        {"api", "metrics", "transport"},
        {"generated", "json_schema", "messages", "prefix_key", "process", "stopped", "token_column"},
    ),
}
"""Upper floors first; a module or room imports its own floor and those below. What is not here has one floor."""
MOST_MODULES = 15
IMPORT_BY_NAME = {
    "quire.deploy.__main__": "imports the module of the sub-command that is asked for: the others would load much",
    "quire.deploy.bench.commands": "imports the bench that is asked for, likewise",
    "quire.kernels.dispatch": "imports the form of an operation on its first use: Triton is needed only where CUDA is",
    "quire.kernels.gpu.aot.compile": "takes modules of builds from its command line",
    "quire.kernels.gpu.tuning.trial_process": "takes the function that lists its trials from its command line",
}
"""What calls `import_module`, and why; any other import is a statement that the rules can read."""

PURE = (
    "quire.scheduler.core",
    "quire.scheduler.state",
    "quire.deploy.supervisor.actions",
    "quire.deploy.supervisor.keeper",
    "quire.deploy.supervisor.shutdown",
    "quire.deploy.supervisor.units",
)
IMPURE_MODULES = {"time", "zmq", "os", "uuid", "random", "signal", "socket", "subprocess", "threading"}


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


def item_of(name: str, folder: str) -> str | None:
    """The module or room of `folder` that `name` is or lies in; None for what lies elsewhere."""
    prefix = f"quire.{folder}."
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else None


@pytest.mark.parametrize("folder", FLOORS)
def test_imports_run_downward_inside(imports, folder: str) -> None:
    floors = FLOORS[folder]
    assert len(floors) <= MOST_FLOORS
    number_of = {item: number for number, floor in enumerate(floors) for item in floor}
    items = {item_of(name, folder) for name in imports} - {None}
    assert items == set(number_of), "each module and room needs one floor, and what is gone none"
    wrong = []
    for name, imported in imports.items():
        item = item_of(name, folder)
        for other in imported:
            below = item_of(other, folder)
            if item and below and number_of[below] < number_of[item]:
                wrong.append(f"{name} imports upward {other}")
    assert wrong == []


def rooms_of(modules) -> dict[str, set[str]]:
    """Folder -> its modules."""
    rooms: dict[str, set[str]] = {}
    for name, module in modules.items():
        if module.path.name != "__init__.py":
            room, _, short = name.rpartition(".")
            rooms.setdefault(room, set()).add(short)
    return rooms


def test_no_room_is_crowded(modules) -> None:
    crowded = {room: len(found) for room, found in rooms_of(modules).items() if len(found) > MOST_MODULES}
    assert crowded == {}


def test_no_two_rooms_import_each_other(imports) -> None:
    """A room is a folder: what lies in it, taken together, imports no room that imports it."""
    for folder in sorted({name.rpartition(".")[0] for name in imports if "." in name}):
        inside = folder.removeprefix("quire.")
        graph: dict[str, set[str]] = {}
        for name, imported in imports.items():
            item = item_of(name, inside)
            if item is not None:
                others = {item_of(other, inside) for other in imported}
                graph.setdefault(item, set()).update(one for one in others if one not in (None, item))
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            raise AssertionError(f"circle of rooms in {folder}: {' -> '.join(error.args[1])}") from error


def test_only_a_few_modules_import_by_name(modules) -> None:
    found = {
        name
        for name, module in modules.items()
        if any(isinstance(node, ast.Call) and is_import_module(node.func) for node in ast.walk(module.tree))
    }
    assert found == set(IMPORT_BY_NAME)


def test_an_import_by_name_counts_as_far_as_its_name_is_known() -> None:
    code = (
        'PACKAGE = "quire.a."\nimport_module("quire.a.x")\nimport_module(PACKAGE + name)\n'
        'importlib.import_module(f"{PACKAGE}{name}")\nimport_module(PACKAGE + name if ours else name)\n'
        "import_module(name)"
    )
    tree = ast.parse(code)
    known = constants_of(tree)
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    assert all(is_import_module(call.func) for call in calls)
    found = [dynamic_imports(call.args[0], known, ("quire.a.x", "quire.a.y", "quire.b")) for call in calls]
    both = {"quire.a.x", "quire.a.y"}
    assert found == [{"quire.a.x"}, both, both, both, set()]


def test_there_is_no_import_circle(imports) -> None:
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(f"import circle: {' -> '.join(error.args[1])}") from error


def test_the_scheduler_state_machine_is_pure(modules) -> None:
    """No clock, socket, thread or randomness: equal events give equal instructions, which the simulator relies on."""
    wrong = []
    for name, module in modules.items():
        if not name.startswith(PURE):
            continue
        for node in ast.walk(module.tree):
            roots: set[str] = set()
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").split(".")[0]}
            wrong += [f"{module.short}:{node.lineno} imports {root}" for root in roots & IMPURE_MODULES]
    assert wrong == []


def test_torch_and_transformers_stay_out_of_all_but_workers_and_kernels(modules) -> None:
    """The command line, too. Each module that first brings one in is named."""
    light = ("quire.proto", "quire.scheduler", "quire.frontend")
    names = [name for name in modules if name.startswith(light) and not name.endswith("__main__")]
    assert {".".join(name.split(".")[:2]) for name in names} == set(light)
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(name)\n"
        "    for heavy in {'torch', 'transformers'} & (set(sys.modules) - before):\n"
        "        print(name, heavy)"
    )
    command = [sys.executable, "-P", "-c", code, "quire.deploy.__main__", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_an_engine_on_the_cpu_starts_without_triton(modules) -> None:
    """Every module but the kernels for GPUs, what measures or trains, and the library's; then an engine of ours up to
    its first steps."""
    library = "quire.worker.models.library"
    aside = ("quire.kernels.gpu", "quire.kernels.bench", "quire.deploy.training.train_model", library)
    names = [name for name in modules if not name.startswith(aside) and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        "from pathlib import Path\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
        "from quire.worker.config import WorkerConfig\n"
        "from quire.worker.device.device import Device\n"
        "from quire.worker.device.parallel import Groups\n"
        "from quire.worker.start import start\n"
        "config = WorkerConfig(model=sys.argv[1], device='cpu', max_num_seqs=4, kv_cache_memory_bytes=8 << 20)\n"
        "start(config, 0, Device('cpu', 0), Groups)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'triton', 'transformers'}))"
    )
    model = modules["quire.deploy"].path.parent / "model"
    command = [sys.executable, "-P", "-c", code, str(model), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
