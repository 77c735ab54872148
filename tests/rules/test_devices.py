"""Which device this is, is asked in few places: all else runs the form or the property it is given."""

import ast
from collections.abc import Iterator

ROOMS = ("quire.worker.device.", "quire.kernels.gpu.")
MODULES = {
    "quire.kernels.chips": "knows what torch shows under the name of CUDA",
    "quire.kernels.dispatch": "picks the form of an operation",
    "quire.kernels.bench.__main__": "the shapes and caches that are measured differ by kind of device",
    "quire.kernels.bench.ceilings": "so do the sizes that show a device's rates",
    "quire.kernels.bench.layers": "8-bit weights are measured where they run",
    "quire.kernels.bench.stopwatch": "a GPU is timed by its events, a CPU by the clock",
    "quire.worker.bench.roofline": "the layers that show a machine's rates differ by kind of device",
}


def device_checks(tree: ast.AST) -> Iterator[str]:
    """`x.type == "cuda"`, `device_type == "cpu"`, `x.is_cuda`, `torch.cuda.is_available`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "is_cuda":
            yield f"line {node.lineno}: is_cuda"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda.is_available":
            yield f"line {node.lineno}: is_available"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {ast.unparse(side).rpartition(".")[2] for side in sides}
            kinds = {side.value for side in sides if isinstance(side, ast.Constant)}
            if kinds & {"cuda", "cpu"} and names & {"type", "device_type"}:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_only_a_few_modules_ask_which_device_this_is(modules) -> None:
    asking = {
        name: found
        for name, module in modules.items()
        if not name.startswith(ROOMS) and (found := list(device_checks(module.tree)))
    }
    assert {name: found for name, found in asking.items() if name not in MODULES} == {}
    assert set(MODULES) - set(asking) <= {"quire.kernels.dispatch"}, "what no longer asks leaves the list"


def test_the_rule_sees_what_it_forbids() -> None:
    code = (
        'if device.type == "cuda": pass\nif "cpu" != device_type: pass\nx.is_cuda\ntorch.cuda.is_available()\n'
        'if rope.type == "yarn": pass\nform(device.type)'
    )
    assert [found.partition(": ")[2] for found in device_checks(ast.parse(code))] == [
        "device.type == 'cuda'",
        "'cpu' != device_type",
        "is_cuda",
        "is_available",
    ]
