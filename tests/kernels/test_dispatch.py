"""The device chooses the implementation, after the arguments are checked; the catalog names it."""

import pytest
import torch

from quire.kernels.catalog import OPERATIONS, implementations
from quire.kernels.dispatch import Operation


def double_reference(x):
    return 2 * x


def double_on_meta(x):
    return x


def check(x):
    if x.ndim != 1:
        raise ValueError(f"x: expected one dimension, got {x.ndim}")


def test_a_faster_form_serves_its_device_and_the_reference_all_others():
    double = Operation(double_reference, check, {"meta": double_on_meta})
    assert double(torch.ones(1)).item() == 2.0
    on_meta = torch.ones(1, device="meta")
    assert double(on_meta) is on_meta
    assert (double.name, double.reference) == ("double", double_reference)


def test_every_form_is_behind_the_same_check():
    double = Operation(double_reference, check, {"meta": double_on_meta})
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^x: expected one dimension"):
            double(torch.ones((1, 1), device=device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_catalog_names_what_runs_each_operation(device):
    named = implementations(device)
    assert len(named) == len(OPERATIONS)
    assert named["rms_norm"] == "quire.kernels.norm.rms_norm_reference"
