"""Fixtures for all tests: tiny checkpoints in Hugging Face layout, made on the spot from a seed."""

import gc
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from parts import unchanged
from parts.sample import mark_others_thorough

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell, of what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of tests begin without that

HERE = Path(__file__).parent
INTEGRATION = (
    "bench",
    "frontend/http",
    "frontend/media",
    "gpu",
    "kernels/gpu",
    "sim",
    "stand_in",
    "system",
    "worker/models",
    "worker/quant",
)
"""Folders of tests that start engines or servers, compile for chips, hold whole models against a library or take
minutes: `make test` runs them, `make check` does not. Modules and tests elsewhere that do so say it themselves, with
the same mark.
"""

pytest_plugins = ["parts.again"]

LONGEST = (
    "system/test_slow_loading.py",
    "stand_in/test_both_scripts.py",
    "gpu/test_scripts.py",
    "deploy/test_wheel.py",
    "sim/test_sim.py",
    "bench/test_image_door.py",
    "system/test_image_faults.py",
    "stand_in/test_stand_in.py",
    "worker/models/test_fit.py",
    "worker/models/test_conditions.py",
    "sim/test_mutants.py",
    "system/test_page.py",
    "system/test_faults.py",
    "kernels/gpu/aot/test_compile.py",
    "bench/test_front_door.py",
    "system/test_refused_starts.py",
    "deploy/supervisor/test_supervisor.py",
)
"""Files that take half a minute and more, those that mostly wait among those that compute: they begin first, so that
no core waits for them at the end.
"""

# Triton reads this when it is first imported: its kernels then run on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")
# OpenMP, too: threads with nothing to do sleep at once, because they would spin on cores that other files' tests need.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# No test fails because the machine is slow, whose first example may import half of a library, nor by a draw of its own.
settings.register_profile("quire", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("quick", parent=settings.get_profile("quire"), max_examples=30)

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a quire is a gathering of pages, and pages are the blocks of a cache",
    "def first(values): return values[0] if values else None",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: the collector of garbage would look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def is_integration(folder: Path) -> bool:
    return any(folder.is_relative_to(HERE / one) for one in INTEGRATION)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample-seed", type=int, default=0, help="draw other cases of sampled tests (default: 0)")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: its decorators ask how many examples there are."""
    is_quick = "not thorough" in config.option.markexpr
    settings.load_profile("quick" if is_quick else "quire")
    if is_quick:
        assert callable(providers._get_local_constants)
        # examples would hold constants of whatever modules the tests before it have imported: other ones in each run
        providers._get_local_constants = lambda: providers._local_constants


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if "not thorough" in config.option.markexpr:
        terminalreporter.line(f"cases of sampled tests: drawn by --sample-seed {config.option.sample_seed}")
        terminalreporter.line(unchanged.story())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out as a whole is not even imported: the clients of `system/agents` alone take seconds."""
    left_out = re.findall(r"not (integration|thorough)", config.option.markexpr)
    if collection_path.is_dir():
        return True if "integration" in left_out and is_integration(collection_path) else None
    if not left_out or not collection_path.match("test_*.py"):
        return None
    marked = re.search(r"^pytestmark = pytest\.mark\.(\w+)$", collection_path.read_text(), re.MULTILINE)
    return True if marked and marked[1] in left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Before marks are chosen by: they depend on folders, and on the other cases of a test."""
    for item in items:
        if is_integration(item.path.parent):
            item.add_marker(pytest.mark.integration)
    mark_others_thorough(items, config.option.sample_seed)
    begin = {HERE / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: begin.get(item.path, len(begin)))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_checkpoint(architecture, dtype="float32", seed=0, max_shard_size="1GB", **config) -> folder`.

    A random model of two layers with weights, config, generation config, byte-level tokenizer and chat template.
    `config` overrides fields of its config.json; the same call returns the same folder. Treat it as read-only.
    """
    from tiny_models import write_model

    made: dict[str, Path] = {}

    def make(
        architecture: str = "LlamaForCausalLM",
        *,
        dtype: str = "float32",
        seed: int = 0,
        max_shard_size: str = "1GB",
        **config: Any,
    ) -> Path:
        key = json.dumps([architecture, dtype, seed, max_shard_size, config], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("model")
            write_model(made[key], architecture, dtype, seed, max_shard_size, config)
            _write_tokenizer(made[key])
        return made[key]

    return make


def _write_tokenizer(folder: Path) -> None:
    from tiny_models import TINY
    from tiny_tokenizer import write_tokenizer

    write_tokenizer(folder, SPECIAL, TEMPLATE, CORPUS, TINY["vocab_size"])


@pytest.fixture
def triton_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run in Triton's interpreter as they would on a chip, and at once."""
    import interpreted

    interpreted.repair(monkeypatch)
    with interpreted.language():
        interpreted.hasten(monkeypatch)
        yield
