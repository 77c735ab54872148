"""A chip that is not here runs everything: wrappers, models, runner and sampler; and refuses what a chip refuses."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import compile_record
import pytest
import triton

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "gpu"
PINS = HERE.parents[1] / "constraints.txt"
PLANTED = {"product", "fill", "first_row_of", "scratch", "descriptor"}
"""Kernels of `planted.py`, which is not on record."""
FEW = [
    "vector_linear_kernel",
    "rope_store_kv_kernel",
    "decode_kernel",
    "merge_splits_kernel",
    "vector_linear_kernel",
    "vector_linear_kernel",
    "vector_linear_kernel",
]
MANY = [
    "norm_rows_kernel", "torch.linear", "rope_store_kv_kernel", "decode_kernel", "merge_splits_kernel",
    "torch.linear", "norm_rows_kernel", "torch.linear", "gated_activation_kernel", "torch.linear",
]  # fmt: skip
LAYERS = {"decode 1": FEW, "decode 16": MANY, "decode 128": MANY}


def run(script: str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / script), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def launched(path: Path) -> set[str]:
    """Triton functions that a module starts on a grid: `name[...](...)`."""
    tree = ast.parse(path.read_text())
    ours = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return ours & {
        call.value.id for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)
    }


GROUPS = [
    "norm_rows_kernel", "linear_group_words_kernel", "add_parts_kernel", "rope_store_kv_kernel", "decode_kernel",
    "merge_splits_kernel", "linear_group_words_kernel", "add_parts_kernel", "norm_rows_kernel",
    "linear_group_words_kernel", "add_parts_kernel", "linear_group_words_kernel", "add_parts_kernel",
]  # fmt: skip
"""Of weights in groups, up to 64 tokens: with more, weights are made and multiplied piece by piece."""


def share(name: str, cache: Path) -> list[dict]:
    done = run("run.py", cache, "--share", name)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found, done.stderr[-2000:]
    return found


@pytest.fixture(scope="module")
def few(compiled: Path) -> list[dict]:
    """Every wrapper and a few models on one chip, run."""
    return share("few", compiled)


@pytest.fixture(scope="module")
def rest(compiled: Path) -> list[dict]:
    """Every other case on every chip, run."""
    return share("rest", compiled)


@pytest.fixture(params=["few", pytest.param("rest", marks=pytest.mark.thorough)])
def rows(request) -> list[dict]:
    return request.getfixturevalue(request.param)


def test_nothing_fails_and_nothing_spills_on_any_chip(rows) -> None:
    assert [(row["capability"], row["case"], row["fault"]) for row in rows if row["fault"]] == []
    assert all(row["launches"] for row in rows)


@pytest.mark.thorough
def test_every_chip_has_its_cases(rest) -> None:
    assert {row["capability"] for row in rest} == {86, 90, 120}


def test_every_kernel_is_launched_by_its_wrapper(few) -> None:
    seen = {kernel for row in few for kernel in row["kernels"]}
    wanted = set().union(
        *map(launched, KERNELS.rglob("*.py")), {"prefill_plain", "prefill_specialized", "search_kernel"}
    )
    assert len(wanted) > 20
    assert wanted - seen == set()


def test_a_layer_of_the_8b_model_launches_7_10_and_11_kernels(rows) -> None:
    """Today's counts, of both 8B models and of any cache: a change that adds a launch says so here."""
    layers = [(row["case"], row["capability"], row["layers"]) for row in rows if "8b" in row["case"]]
    assert len(layers) in (1, 5)
    for case, capability, found in layers:
        prefill = "prefill_specialized" if "pages of 64" in case else "prefill_plain"
        mixed = [*MANY[:3], prefill, *MANY[3:]]
        wanted = {**LAYERS, "mixed 16": mixed, "mixed": mixed}
        assert {name: found[name] for name in wanted} == wanted, (case, capability)
    assert (len(FEW), len(MANY), len(MANY) + 1) == (7, 10, 11)


@pytest.mark.thorough
def test_a_layer_of_weights_in_groups_launches_13_kernels(rest) -> None:
    (found,) = [row["layers"] for row in rest if row["case"] == "llama int4"]
    assert found["decode 1"] == found["decode 16"] == GROUPS
    assert len(GROUPS) == 13
    many = found["decode 128"]
    assert many.count("dequantize_words_kernel") == many.count("torch.mm") == 8
    assert "linear_group_words_kernel" not in many


def test_the_record_is_what_the_compiler_makes(rows, compiled: Path) -> None:
    """Of those that this run compiled. With the pinned Triton all that is launched is on record."""
    on_record = compile_record.read()
    found = {kernel["hash"]: kernel for kernel in compile_record.kernels(compiled) if kernel["name"] not in PLANTED}
    if f"triton=={triton.__version__}" in PINS.read_text().splitlines():
        missing = sorted({kernel["name"] for key, kernel in found.items() if key not in on_record})
        assert missing == [], "these have changed: run `make compiled`"
    assert [kernel for key, kernel in found.items() if key in on_record and kernel != on_record[key]] == []


def test_a_layer_of_8_bit_rows_rounds_its_activations_before_each_product(few) -> None:
    """Today's counts: 14 launches of few tokens, of which three add the parts of a split product, and 11 of many.

    What comes before three of the products is in the launch that rounds: two norms and the gate.
    """
    (layers,) = [row["layers"] for row in few if row["case"] == "llama f8 rows"]
    attention = ["rope_store_kv_kernel", "decode_kernel", "merge_splits_kernel"]
    whole, split = ["quantize_f8_kernel", "product_f8_kernel"], ["add_f8_parts_kernel"]
    few = [*whole, *split, *attention, *whole, *split, *whole, *whole, *split]
    many = ["quantize_f8_kernel", "torch._scaled_mm"]
    assert layers["decode 1"] == layers["decode 16"] == few
    assert layers["decode 128"] == [*many, *attention, *many, *many, *many]
    assert (len(few), len(layers["decode 128"])) == (14, 11)


@pytest.mark.thorough
def test_a_layer_of_integers_scales_the_sums_of_many_tokens_in_a_launch_of_its_own(rest) -> None:
    """Few tokens as with 8-bit floats; cuBLAS leaves sums of many."""
    (layers,) = [row["layers"] for row in rest if row["case"] == "llama int8 rows"]
    attention = ["rope_store_kv_kernel", "decode_kernel", "merge_splits_kernel"]
    whole, split = ["quantize_int8_kernel", "product_int8_kernel"], ["scale_int8_sums_kernel"]
    few = [*whole, *split, *attention, *whole, *split, *whole, *whole, *split]
    many = ["quantize_int8_kernel", "torch._int_mm", "scale_int8_sums_kernel"]
    assert layers["decode 1"] == layers["decode 16"] == few
    assert layers["decode 128"] == [*many, *attention, *many, *many, *many]


@pytest.fixture(scope="module")
def said(compiled: Path) -> dict[int, dict]:
    """What the stand-in for a chip says to planted launches, by chip."""
    found = json.loads(run("planted.py", compiled, "86", "90").stdout)
    return {int(capability): answers for capability, answers in found.items()}


def test_what_a_chip_runs_is_noted(said) -> None:
    assert said[90]["sound"] == said[86]["sound"] == "1 launched"
    noted = said[90]["noted"]
    assert (noted["kernel"], noted["grid"], noted["num_warps"], noted["spills"]) == ("product", "(1, 1, 1)", "4", "0")
    assert noted["types"] == "{'a': '*bf16', 'b': '*bf16', 'out': '*fp32', 'size': 'i32'}"
    assert noted["constants"] == "{'M': 64, 'N': 64, 'K': 64}"
    assert int(noted["shared"]) == 3 * 2 * 64 * 64 * 2
    assert int(noted["registers"]) >= 32
    assert said[90]["empty grid"] == "0 launched"


def test_what_a_chip_refuses_is_refused(said) -> None:
    hopper, ampere = said[90], said[86]
    assert hopper["shared memory"] == "1 launched"
    assert ampere["shared memory"].startswith("OutOfResources: out of resource: shared memory, Required: 163840")
    assert hopper["warps"].startswith("OutOfResources: out of resource: threads, Required: 2048, Hardware limit: 1024")
    assert hopper["grid"].startswith("LaunchError: fill: grid (1, 65536, 1) is longer")
    assert hopper["no scratch"].startswith("LaunchError: scratch: needs scratch memory")


def test_what_only_the_compiler_sees_is_seen(said) -> None:
    """A whole number of 1 is a constant to the compiler, where the interpreter sees a tensor."""
    assert said[90]["two"] == "1 launched"
    assert said[90]["one"].startswith("CompilationError")
    assert said[90]["type"].startswith("KeyError")
    assert said[90]["not a tensor"].startswith("TypeError")
    assert said[90]["number too large"].startswith("OverflowError")


def test_under_the_interpreter_nothing_stands_in() -> None:
    from quire.kernels.gpu.aot.stand_in import CHIPS, standing_in

    with pytest.raises(RuntimeError, match="run with TRITON_INTERPRET=0"), standing_in(CHIPS[90]):
        pass
