"""The compiled forms before the first layer and behind the last one, against their references."""

import numpy as np
import pytest
import torch

from quire.kernels.attention.rope_angles import rope_angles_reference
from quire.kernels.cpu.linear.embedding import embed_shard
from quire.kernels.cpu.prepare_inputs import prepare_inputs
from quire.kernels.cpu.rope_angles import rope_angles
from quire.kernels.cpu.sampling.score import best
from quire.kernels.linear.embedding import embed_shard_reference
from quire.kernels.linear.pack import pack
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs_reference
from quire.kernels.sampling.score import best_reference

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blocked", [False, True])
def test_rows_of_the_share_are_looked_up_and_others_are_zero(dtype, blocked):
    plain = torch.randn((48, 64), generator=torch.Generator().manual_seed(1)).to(dtype)
    ids = torch.tensor([100, 99, 147, 148, -1, 130, 130, 1 << 40])
    weight = pack(plain) if blocked else plain
    assert torch.equal(embed_shard(ids, weight, 100, 45), embed_shard_reference(ids, plain, 100, 45))
    assert embed_shard(ids[:0], weight, 0, 48).shape == (0, 64)


@pytest.mark.parametrize("axes", [1, 3])
def test_angles_are_those_of_the_reference(axes):
    generator = torch.Generator().manual_seed(2)
    positions = torch.randint(0, 200_000, (axes, 300), generator=generator)[:, :37]
    frequencies = 1.0 / 10_000.0 ** (torch.arange(0, 64, 2) / 64)
    pair_axes = torch.randint(0, axes, (32,), generator=generator) if axes > 1 else None
    for made, wanted in zip(
        rope_angles(positions, frequencies, pair_axes, 1.3),
        rope_angles_reference(positions, frequencies, pair_axes, 1.3),
        strict=True,
    ):
        torch.testing.assert_close(made, wanted, rtol=0.0, atol=2e-7)
        assert wanted.is_contiguous(), "GPUs run the reference, and what turns by it wants it so"


def empty_inputs(num_tokens, num_rows):
    """Buffers full of what no step writes, the positions of two axes."""
    kinds = torch.int64, torch.int64, torch.int64, torch.int32, torch.int32, torch.int32
    shapes = num_tokens, (2, num_tokens), num_tokens, num_rows + 1, num_rows, num_rows
    columns = zip(shapes, kinds, strict=True)
    return StepInputs(*(torch.full(np.atleast_1d(shape).tolist(), -7, dtype=kind) for shape, kind in columns))


@pytest.mark.parametrize("seed", range(20))
def test_inputs_are_those_of_the_reference(seed):
    """Decodes, chunks, drafts behind what is known, rows and tokens of padding."""
    random = np.random.default_rng(seed)
    num_slots, block_size = 9, int(2 ** random.integers(0, 5))
    tokens = torch.from_numpy(random.integers(0, 1000, (num_slots, 64), dtype=np.int32))
    known = torch.from_numpy(random.integers(1, 50, num_slots))
    tables = torch.from_numpy(random.integers(0, 500, (num_slots, -(-64 // block_size)), dtype=np.int32))
    num_rows = int(random.integers(1, num_slots + 1))
    slots = random.permutation(num_slots)[:num_rows]
    left = np.array([random.integers(1, known[slot] + 1) for slot in slots])
    counts = np.array([random.integers(0, most + 5) for most in left])
    rows = torch.zeros((3, 20), dtype=torch.int32)[:, :num_rows]
    rows.copy_(torch.from_numpy(np.stack((slots, left, counts))))
    num_tokens = int(counts.sum() + random.integers(0, 4))
    made, wanted = empty_inputs(num_tokens, num_rows), empty_inputs(num_tokens, num_rows)
    prepare_inputs(tokens, known, tables, rows, block_size, made)
    prepare_inputs_reference(tokens, known, tables, rows, block_size, wanted)
    for name, column in made._asdict().items():
        assert torch.equal(column, getattr(wanted, name)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 1000])
def test_the_best_is_the_greatest_at_its_lowest_place(dtype, width):
    logits = torch.randint(-9, 9, (50, width + 3), generator=torch.Generator().manual_seed(width)).to(dtype)[:, :width]
    values, ids = best(logits)
    wanted_values, _ = best_reference(logits)
    assert torch.equal(values, wanted_values)
    assert ids.tolist() == logits.float().numpy().argmax(axis=-1).tolist()


@pytest.mark.parametrize("unsound", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 5, 32, 36])
def test_a_row_that_is_not_finite_has_no_value_but_a_place(unsound, place):
    logits = torch.randn((3, 37), generator=torch.Generator().manual_seed(3))
    logits[1, place] = unsound
    values, ids = best(logits)
    assert values.isnan().tolist() == [False, True, False]
    assert 0 <= ids[1] < 37
