"""The device chooses the form, after the arguments are checked; all forms of an operation have one signature."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from quire.kernels.catalog import OPERATIONS, implementations
from quire.kernels.dispatch import Operation

ROOT = Path(__file__).resolve().parents[2]


def double_reference(x):
    return 2 * x


def check(x):
    if x.ndim != 1:
        raise ValueError(f"x: expected one dimension, got {x.ndim}")


def test_a_faster_form_serves_its_device_and_the_reference_all_others():
    double = Operation(double_reference, check, {"meta": "torch:squeeze"})
    assert double(torch.ones(1)).item() == 2.0
    assert double(torch.ones(1, device="meta")).shape == (), "the form for meta tensors squeezes"
    assert (double.name, double.reference) == ("double", double_reference)


def test_every_form_is_behind_the_same_check():
    double = Operation(double_reference, check, {"meta": "torch:squeeze"})
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^x: expected one dimension"):
            double(torch.ones((1, 1), device=device))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_form_has_the_signature_of_its_reference(operation, device):
    form = operation.implementation(device)
    assert f"{form.__module__}:{form.__name__}" == operation.form(device) == implementations(device)[operation.name]
    wanted, given = (inspect.signature(function).parameters for function in (operation.reference, form))
    assert list(given) == list(wanted)
    assert [given[name].default for name in given] == [wanted[name].default for name in wanted]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_written_for_a_device_and_named_as_an_operation_serves_it(device):
    folder = ROOT / "kernels" / {"cpu": "cpu", "cuda": "gpu"}[device]
    served = {operation.name: operation.form(device) for operation in OPERATIONS}
    idle = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(folder.rglob("*.py"))
        for name in re.findall(r"(?<!@triton\.jit\n)^def (\w+)\(", path.read_text(), re.MULTILINE)
        if name in served and served[name] != f"quire.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{name}"
    ]
    assert idle == []
