"""The table of ahead-of-time compiles: it names what is wrong with a kernel, and every shipped kernel is clean."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

ROOT = Path(__file__).resolve().parents[4]
KERNELS = ROOT / "kernels" / "gpu"
PINS = ROOT / "constraints.txt"
RECORDED = Path(__file__).with_name("compiled.jsonl")
"""The record of every shipped build by the pinned compiler: `make compiled` writes it."""
AGAIN = 4
"""Builds that are compiled all the same, other ones each time."""

# A matrix product whose tile sizes decide what becomes of it.
PLANTED = """
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build


@triton.jit
def matmul(a, b, out, size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, size, BLOCK_K):
        left = tl.load(a + rows[:, None] * size + start + inner[None, :])
        right = tl.load(b + columns[:, None] * size + start + inner[None, :])
        total = tl.dot(left, right.T, total)
    tl.store(out + rows[:, None] * BLOCK_N + columns[None, :], total)


def matmul_build(name, m, n, k, stages, features=(), divisible=("a", "b", "out", "size")):
    signature = {"a": "*bf16", "b": "*bf16", "out": "*fp32", "size": "i32"}
    constants = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return Build(name, matmul, signature, constants, 4, stages, divisible, frozenset(features))


def builds(capability):
    yield matmul_build("good", 64, 64, 64, 3, {90: ["wgmma"], 80: ["mma"]}[capability])
    if capability == 90:
        yield matmul_build("small rows", 16, 64, 64, 3, ["wgmma", "warp_specialize"])
        yield matmul_build("spilling", 128, 256, 64, 2)
        yield matmul_build("large tiles", 128, 128, 128, 5)
        yield Build("incomplete", matmul, {"a": "*bf16"}, {"BLOCK_M": 16}, 4)
"""


def ahead(cache: Path, *arguments: str, interpret: str = "0", path: Path | None = None):
    variables = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    if path is not None:
        variables["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "quire.kernels.gpu.aot.compile", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def launched_kernels(tree: ast.Module):
    """Names of what the module launches on a grid: `name[...](...)`, where `name` is one of its Triton functions."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    ours = {node.name for node in functions if any("triton.jit" in ast.unparse(mark) for mark in node.decorator_list)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
        ):
            yield from ours & {node.func.value.id}


def rows_of(done) -> dict:
    return {(row["build"], row["capability"]): row for row in json.loads(done.stdout.splitlines()[-1])}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The finished process over the planted kernels."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "planted").mkdir()
    (folder / "planted" / "matmul.py").write_text(PLANTED)
    arguments = ["--kernels", "planted.matmul", "--capability", "90", "80", "--json"]
    return ahead(folder / "cache", *arguments, path=folder)


@pytest.fixture
def planted_record(tmp_path):
    """Two sound builds, compiled and on record; their folder; the record."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "matmul.py").write_text(
        PLANTED.replace(
            "    yield matmul_build",
            """
    yield matmul_build("small", 16, 16, 16, 2)
    yield matmul_build""",
            1,
        )
    )
    record = tmp_path / "record.jsonl"
    words = ["--kernels", "planted.matmul", "--capability", "80", "--json", "--recorded", str(record), "--record"]
    return ahead(tmp_path / "cache", *words, path=tmp_path), tmp_path, record


@pytest.mark.thorough
def test_a_kernel_that_keeps_its_promises_is_ok_and_its_resources_are_named(planted):
    row = rows_of(planted)["good", 90]
    assert row["faults"] == []
    assert row["instructions"] == ["cp.async.cg", "wgmma m64n64k16"]
    assert row["features"] == ["wgmma", "wide_copy"]
    assert 32 <= row["registers"] <= 168
    assert row["shared"] >= 3 * 2 * 64 * 64 * 2
    older = rows_of(planted)["good", 80]
    assert older["faults"] == []
    assert older["instructions"] == ["cp.async.cg", "mma m16n8k16"]


@pytest.mark.thorough
def test_a_spill_and_its_stack_frame_are_faults(planted):
    row = rows_of(planted)["spilling", 90]
    assert row["spills"] > 0
    assert row["stack"] > 0
    assert [fault.split(" of ")[0] for fault in row["faults"]] == [
        f"{row['spills']} loads and stores",
        "stack frame",
    ]


@pytest.mark.thorough
def test_a_missing_feature_is_a_fault_each(planted):
    assert rows_of(planted)["small rows", 90]["faults"] == ["no warp_specialize", "no wgmma"]


@pytest.mark.thorough
def test_more_shared_memory_than_the_chip_has_is_a_fault(planted):
    row = rows_of(planted)["large tiles", 90]
    assert row["faults"] == [f"shared memory {row['shared']} > {227 * 1024} bytes"]


@pytest.mark.thorough
def test_a_build_that_does_not_compile_is_a_fault_with_the_reason(planted):
    (fault,) = rows_of(planted)["incomplete", 90]["faults"]
    assert fault.startswith("does not compile: ValueError")
    assert "BLOCK_K" in fault


@pytest.mark.thorough
def test_one_fault_makes_the_exit_status_one_and_the_table_says_which(planted):
    assert planted.returncode == 1, planted.stderr
    assert "6 builds of 1 modules, 4 at fault" in planted.stdout
    (line,) = [line for line in planted.stdout.splitlines() if line.startswith("planted.matmul  spilling")]
    assert "stack frame" in line


@pytest.mark.thorough
def test_the_interpreter_and_unknown_modules_are_refused(tmp_path):
    interpreted = ahead(tmp_path, interpret="1")
    assert interpreted.returncode == 2
    assert "run with TRITON_INTERPRET=0" in interpreted.stderr
    unknown = ahead(tmp_path, "--kernels", "nothing")
    assert unknown.returncode == 2
    assert "quire.kernels.gpu.aot.builds.nothing" in unknown.stderr
    without = ahead(tmp_path, "--kernels", "quire.kernels.gpu.aot.build")
    assert without.returncode == 2
    assert "quire.kernels.gpu.aot.build define no builds" in without.stderr


@pytest.mark.thorough
def test_a_record_stands_for_what_has_not_changed_and_for_nothing_else(planted_record, tmp_path):
    first, folder, record = planted_record
    assert first.stdout.splitlines()[-2].endswith("2 builds of 1 modules, 0 at fault, 2 compiled")
    words = ["--kernels", "planted.matmul", "--capability", "80", "--recorded", str(record), "--json"]
    changed = folder / "planted" / "matmul.py"
    same = ahead(folder / "cache", *words, path=folder)
    assert same.stdout.splitlines()[-2].endswith("2 builds of 1 modules, 0 at fault, 0 compiled")
    assert same.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    wrong = tmp_path / "wrong"
    wrong.write_text(record.read_text().replace('"stack": 0', '"stack": 8'))
    found = ahead(folder / "cache", *words[:-2], str(wrong), "--again", "2", "--json", path=folder)
    assert found.returncode == 1
    assert all("recorded as Resources(" in row["faults"][-1] for row in rows_of(found).values())
    changed.write_text(changed.read_text().replace("left, right.T, total", "left, right.T * 2, total"))
    after = ahead(folder / "cache", *words, path=folder)
    assert after.stdout.splitlines()[-2].endswith("2 builds of 1 modules, 0 at fault, 2 compiled")


def test_every_shipped_kernel_compiles_clean_for_every_chip(tmp_path, capsys):
    chips = ("--capability", "90", "120", "--neighbours", "80", "86", "89", "100")
    done = ahead(tmp_path, "--json", *chips, "--recorded", str(RECORDED), "--again", str(AGAIN))
    *table, _ = done.stdout.splitlines() or [""]
    with capsys.disabled():  # registers and shared memory of each build, for whoever reads the log of a run
        print("", *table, sep="\n")
    assert done.returncode == 0, done.stdout + done.stderr
    if f"triton=={triton.__version__}" in PINS.read_text().splitlines():
        assert table[-1].endswith(f", {AGAIN} compiled"), "a build is not in the record: run `make compiled`"
    rows = json.loads(done.stdout.splitlines()[-1])
    compiled = {row["function"] for row in rows}
    launched = {name for path in KERNELS.rglob("*.py") for name in launched_kernels(ast.parse(path.read_text()))}
    assert len(launched) > 10
    assert launched <= compiled
    assert {row["capability"] for row in rows} == {80, 86, 89, 90, 100, 120}
    eight_bits = {(row["kernel"], row["capability"]) for row in rows if "fp8" in row["build"]}
    assert eight_bits == {
        (kernel, chip)
        for kernel in (
            "attention.rope_store_kv",
            "attention.prefill",
            "attention.decode",
            "experts.coded_eights",
            "quantized.product_f8",
            "quantized.product_f8_blocks",
            "quantized.quantize_f8",
            "quantized.quantize_f8_blocks",
        )
        for chip in (89, 90, 100, 120)
    }
    newest = {
        row["capability"]: row["features"] for row in rows if row["build"].startswith("d128 bf16 cache bf16 page 16")
    }
    assert all("mma" in newest[chip] for chip in (80, 86, 89, 120))
    assert "wgmma" in newest[90]
    assert "tcgen05" in newest[100]
