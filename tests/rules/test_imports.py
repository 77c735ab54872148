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
    aside = ("quire.kernels.gpu", "quire.kernels.bench", "quire.deploy.training.train_model")
    names = [name for name in modules if not name.startswith(aside) and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        "from pathlib import Path\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
        "from quire.worker.config import WorkerConfig\n"
        "from quire.worker.device.device import Device\n"
        "from quire.worker.device.parallel import SingleGroup\n"
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
