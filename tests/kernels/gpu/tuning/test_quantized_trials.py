"""Trials of products on quantized weights: tiles that the products take, whatever they are, and that are kept."""

from functools import partial

import pytest
import torch

from quire.kernels.gpu import tile_table
from quire.kernels.gpu.quantized import group_tiles as groups
from quire.kernels.gpu.quantized import product_f8 as rows
from quire.kernels.gpu.quantized import product_f8_blocks as blocks
from quire.kernels.gpu.quantized import product_int8 as integers
from quire.kernels.gpu.tuning import quantized_trials
from quire.kernels.linear.linear_f8 import F8

CPU = torch.device("cpu")
SMALLEST = 99 * 1024
"""Bytes of shared memory that a program may have on any chip."""


@pytest.fixture(autouse=True)
def repaired(triton_interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run in the interpreter, and no other test sees what is pinned here."""
    monkeypatch.setattr(tile_table, "_PINNED", {})


def test_trials_are_of_every_layer_once_and_fit_any_chip() -> None:
    trials = list(quantized_trials.trials())
    assert len({(trial.operation, trial.shape) for trial in trials}) == len(trials) == 30
    for trial in trials:
        default, *others = trial.candidates
        assert default not in others
        assert all(candidate.keys() == default.keys() for candidate in others)
        # codes and tokens of all stages
        if trial.operation != groups.OPERATION:
            sizes = [(one["block_o"] + one["tokens"]) * one["block_i"] for one in trial.candidates]
        else:
            sizes = [groups.BLOCK_O * 128 + 2 * 256 * one["tokens"] for one in trial.candidates]
        assert max(size * one["num_stages"] for size, one in zip(sizes, trial.candidates, strict=True)) <= SMALLEST


@pytest.mark.parametrize(
    ("prepare", "default"),
    [
        (partial(quantized_trials.prepare_groups, 3, 512, 80, 4, 128), groups.default_tiles(512, 80, 4)),
        (partial(quantized_trials.prepare_groups, 3, 512, 80, 8, 32), groups.default_tiles(512, 80, 8)),
        (partial(quantized_trials.prepare_rows, 3, 512, 80), rows.default_tiles(3, 512, 80, F8)),
        (partial(quantized_trials.prepare_blocks, 3, 512, 80), rows.default_tiles(3, 512, 80, F8)),
        (partial(quantized_trials.prepare_integers, 3, 512, 80), rows.default_tiles(3, 512, 80, torch.int8)),
    ],
    ids=["4 bits", "8 bits", "f8", "f8 blocks", "int8"],
)
def test_every_candidate_computes_the_same(prepare, default) -> None:
    launch = prepare(CPU)
    first, *others = [launch({**default, "parts": parts}) for parts in (1, 2, 4)]
    for out in others:
        torch.testing.assert_close(out, first, rtol=0.05, atol=0.05 * float(first.abs().max()))


@pytest.mark.parametrize(
    ("operation", "dtype", "prepare", "module"),
    [
        (rows.OPERATION, F8, quantized_trials.prepare_rows, rows),
        (blocks.OPERATION, F8, quantized_trials.prepare_blocks, blocks),
        (integers.OPERATION, torch.int8, quantized_trials.prepare_integers, integers),
    ],
    ids=["f8", "f8 blocks", "int8"],
)
def test_a_product_takes_the_tiles_of_its_own_operation(operation, dtype, prepare, module, monkeypatch) -> None:
    """Rows and blocks of 8-bit floats have layers of the same shapes."""
    taken, chosen = [], module.tiles_for
    monkeypatch.setattr(module, "tiles_for", lambda *given: taken.append(chosen(*given)) or taken[-1])
    launch, key = prepare(3, 512, 80, CPU), rows.f8_shape_key(512, 80, dtype)
    default = rows.default_tiles(16, 512, 80, dtype)
    for other in {rows.OPERATION, blocks.OPERATION, integers.OPERATION} - {operation}:
        tile_table.pin(other, key, {**default, "block_o": 16})
    launch({**default, "block_o": 128})
    assert [tiles["block_o"] for tiles in taken] == [128]


@pytest.mark.parametrize("tokens", [1, 16, 17, 64])
def test_tokens_beyond_those_that_were_measured_take_the_parts_alone(tokens: int) -> None:
    of_groups = {**groups.default_tiles(4096, 64, 4), "parts": 1, "num_stages": 5}
    of_rows = {**rows.default_tiles(16, 4096, 64, F8), "parts": 1, "num_stages": 5}
    defaults = groups.group_tiles(tokens, 4096, 64, 4), rows.tiles_for(tokens, 4096, 64, F8)
    assert min(one["parts"] for one in defaults) > 1
    tile_table.pin(groups.OPERATION, groups.group_shape_key(4096, 64, 4), of_groups)
    tile_table.pin(rows.OPERATION, rows.f8_shape_key(4096, 64, F8), of_rows)
    found = groups.group_tiles(tokens, 4096, 64, 4), rows.tiles_for(tokens, 4096, 64, F8)
    if tokens <= 16:
        assert found == (of_groups, of_rows)
    else:
        assert found == tuple({**one, "parts": 1} for one in defaults)
    assert groups.group_tiles(tokens, 4096, 128, 4)["parts"] > 1
    assert rows.tiles_for(100, 4096, 64, F8) == rows.default_tiles(100, 4096, 64, F8)
