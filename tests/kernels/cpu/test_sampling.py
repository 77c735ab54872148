"""Sampling on CPUs against the plain references, with rows that torch's and numpy's ways took milliseconds for."""

import itertools
import math

import pytest
import torch

from quire.kernels.sampling.penalize import mask_tokens, mask_tokens_reference, penalize, penalize_reference
from quire.kernels.sampling.random import gumbel
from quire.kernels.sampling.sample import TILE, TILE_STREAM, sample, sample_reference
from quire.kernels.sampling.score import score, score_reference
from quire.kernels.sampling.top_k_top_p import top_k_top_p, top_k_top_p_reference

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]
ALL = (0, 1.0, 0.0)
"""top_k, top_p and min_p that cut nothing."""


def logits_of(num_rows, vocab, seed=0, spread=3.0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def columns(num_rows, seed=5):
    """Temperatures, some of them 0, seeds of both signs, positions and outputs."""
    generator = torch.Generator().manual_seed(seed)
    temperature = torch.rand(num_rows, generator=generator) * 2
    temperature[::5] = 0
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    return temperature, seeds, torch.arange(num_rows) * 1_000_003, torch.arange(num_rows) % 4


def cuts(num_rows, top_k, top_p, min_p):
    full = torch.full((num_rows,), 1.0)
    return full.long() * top_k, full * top_p, full * min_p


@pytest.mark.parametrize("vocab", [1, 3, 127, 128, 129, 1000, 32_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tokens_are_those_of_the_reference(vocab, dtype, threads):
    logits = logits_of(40, vocab + 7, seed=vocab).to(dtype)[:, :vocab]  # rows that lie apart
    temperature, *numbers = columns(40)
    floor = torch.full((40,), -math.inf)
    floor[1::3] = logits[1::3].float().amax(1) - 3
    expected = sample_reference(logits, floor, temperature, *numbers)
    for count in (1, 2):
        threads(count)
        assert torch.equal(sample(logits, floor, temperature, *numbers), expected)


def test_masked_tokens_are_never_drawn():
    logits = logits_of(300, 4000)
    allowed = torch.tensor([5, 130, 3999])
    masked = torch.full_like(logits, -math.inf)
    masked[:, allowed] = logits[:, allowed]
    _, *numbers = columns(300)
    ones = torch.ones(300)
    drawn = sample(masked, ones * -math.inf, ones * 3, *numbers)
    assert set(drawn.tolist()) == set(allowed.tolist())


def test_the_noise_of_a_tile_is_that_of_every_other_device():
    """Equal logits leave the choice to the noise alone."""
    logits = torch.zeros(50, TILE * 9)
    _, *numbers = columns(50)
    ones = torch.ones(50)
    drawn = sample(logits, ones * -math.inf, ones, *numbers)
    noise = gumbel(*numbers, torch.zeros(50, dtype=torch.int64), 3, TILE_STREAM)[:, :9]
    assert torch.equal(drawn // TILE, noise.argmax(1))


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_yield_some_token_and_no_floor(temperature, value):
    for logits in (torch.full((3, 200), value), logits_of(3, 200).index_fill(1, torch.tensor([7, 199]), value)):
        heat, zero = torch.full((3,), temperature), torch.zeros(3, dtype=torch.int64)
        floor = top_k_top_p(logits, heat, zero + 5, heat * 0 + 0.9, heat * 0 + 0.1)
        tokens = sample(logits, floor, heat, zero, zero, zero)
        assert ((tokens >= 0) & (tokens < 200)).all()
        if value != -math.inf and temperature:
            assert not (floor == math.inf).any()


SETTINGS = [
    (20, 0.95, 0.0), (0, 0.95, 0.0), (0, 0.5, 0.0), (0, 0.9999, 0.0), (0, 0.0, 0.0), (1, 1.0, 0.0), (2500, 1.0, 0.0),
    (2999, 0.8, 0.0), (0, 1.0, 0.05), (0, 1.0, 1.0), (0, 1.0, 1e-20), (50, 0.9, 0.1), (0, 0.97, 1e-6), ALL,
]  # fmt: skip


@pytest.mark.parametrize("vocab", [1, 100, 128, 3000, 40_000])
@pytest.mark.parametrize("spread", [0.01, 2.0, 20.0], ids=["flat", "usual", "peaked"])
def test_floors_are_those_of_the_reference(vocab, spread, threads):
    logits = logits_of(5, vocab, seed=vocab, spread=spread)
    temperature = torch.tensor([1.0, 0.3, 0.0, 1.7, 0.7])
    references = [top_k_top_p_reference(logits, temperature, *cuts(5, *setting)) for setting in SETTINGS]
    for count, (setting, expected) in itertools.product((1, 2), zip(SETTINGS, references, strict=True)):
        threads(count)
        floor = top_k_top_p(logits, temperature, *cuts(5, *setting))
        kept, wanted = ((logits >= one[:, None]).sum(1) for one in (floor, expected))
        # a mass that is as good as the share may fall to either side of it, by the order of its sum
        assert ((kept - wanted).abs() <= (vocab > 100 and 0 < setting[1] < 1)).all(), setting
        exact = kept == wanted
        assert torch.equal(floor[exact], expected[exact]), setting
        assert exact.sum() >= 3, setting


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_equal_logits_share_their_fate(dtype):
    """Sixteen bits of thousands of logits are rarely unlike."""
    logits = logits_of(4, 9000).to(dtype)
    for setting in ((30, 1.0, 0.0), (0, 0.7, 0.0), (700, 0.9, 0.001)):
        one = torch.ones(4)
        floor = top_k_top_p(logits, one, *cuts(4, *setting))
        assert torch.equal(floor, top_k_top_p_reference(logits, one, *cuts(4, *setting)))


@pytest.mark.parametrize(
    "row",
    [
        torch.full((5000,), 2.5),
        torch.cat((torch.full((4999,), -3.0), torch.tensor([4.0]))),
        -torch.logspace(-30, 30, 5000),
        torch.cat((-torch.arange(5000) * 1e-6, torch.tensor([-1e30, 0.5]))),
        torch.cat((torch.full((3000,), -math.inf), -torch.arange(2000) / 100)),
    ],
    ids=["equal", "one above", "every magnitude", "close together and one afar", "masked"],
)
@pytest.mark.parametrize("setting", [(0, 0.9, 0.0), (3000, 0.9, 0.0), (2500, 1.0, 0.0), (0, 0.9, 1e-9)], ids=str)
def test_logits_that_no_bucket_tells_apart_have_the_floor_of_the_reference(row, setting):
    logits, one = row[None], torch.ones(1)
    floor = top_k_top_p(logits, one, *cuts(1, *setting))
    expected = top_k_top_p_reference(logits, one, *cuts(1, *setting))
    kept, wanted = (int((row >= floor).sum()) for floor in (floor, expected))
    assert abs(kept - wanted) <= 1, (floor, expected)


@pytest.mark.parametrize("vocab", [1, 31, 33, 1000, 32_001])
def test_a_mask_forbids_what_the_reference_does(vocab):
    logits = logits_of(6, vocab + 5)[:, :vocab]
    rows = torch.tensor([4, 0, 5])
    mask = torch.randint(-(2**31), 2**31 - 1, (3, -(-vocab // 32)), dtype=torch.int32)
    expected = logits.clone()
    mask_tokens_reference(expected, rows, mask)
    mask_tokens(logits, rows, mask)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_are_those_of_the_reference(dtype, threads):
    logits = logits_of(9, 32_005).to(dtype)[:, :32_001]
    logits[3, 17], logits[5, 2], logits[6, 9] = math.nan, math.inf, -math.inf
    ids = torch.randint(0, 32_001, (9, 7))
    wanted, wanted_ranks = score_reference(logits, ids)
    for count in (1, 2):
        threads(count)
        logprobs, ranks = score(logits, ids)
        sound = torch.isfinite(logprobs)
        assert torch.equal(sound, torch.isfinite(wanted))
        torch.testing.assert_close(logprobs[sound], wanted[sound], rtol=1e-6, atol=2e-6)
        assert torch.equal(ranks[sound], wanted_ranks[sound])


@pytest.mark.parametrize("vocab", [3, 1000, 32_001])
def test_penalties_are_those_of_the_reference(vocab, threads):
    """Histories hold ids outside the vocabulary, tokens of prompt and output, and more room than they fill."""
    generator = torch.Generator().manual_seed(vocab)
    tokens = torch.randint(-2, min(vocab, 300) + 2, (9, 700), dtype=torch.int32, generator=generator)[:, :650]
    rows, slots = torch.tensor([4, 0, 5, 1]), torch.tensor([8, 2, 0, 3])
    known, prompt = torch.tensor([650, 1, 300, 0]), torch.tensor([400, 1, 0, 0])
    factors = (torch.tensor([1.3, 0.7, 1.0, 2.0]), torch.tensor([0.5, 1, 0, 1]), torch.tensor([0, 0.25, 1, 1]))
    columns_of = (rows, tokens, slots, known, prompt, *(one.float() for one in factors))
    expected = logits_of(6, vocab + 5)[:, :vocab]
    logits = logits_of(6, vocab + 5)[:, :vocab]
    penalize_reference(expected, *columns_of)
    for count in (1, 2):
        threads(count)
        changed = logits.clone()
        penalize(changed, *columns_of)
        torch.testing.assert_close(changed, expected, rtol=1e-6, atol=1e-6)
