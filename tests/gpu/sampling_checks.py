"""The stages of sampling against their references."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from report import Case, Report
from tensors import poisoned

from quire.kernels.sampling.append_tokens import append_tokens, append_tokens_reference
from quire.kernels.sampling.penalize import mask_tokens, mask_tokens_reference, penalize, penalize_reference
from quire.kernels.sampling.sample import sample, sample_reference
from quire.kernels.sampling.score import (
    best,
    best_reference,
    finite_rows,
    finite_rows_reference,
    score,
    score_reference,
)
from quire.kernels.sampling.top_k_top_p import top_k_top_p, top_k_top_p_reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PARTING = 0.02
"""Share of random draws that may fall on the other side of a rounded sum."""


def sampling(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    shapes = ((5, 300), (2, 128)) if small else ((1, 128_256), (256, 128_256), (64, 151_936), (33, 1000), (4, 127))
    for shape, dtype, check in itertools.product(shapes, DTYPES, (_draws, _reads, _edits)):
        if check is not _edits or dtype == torch.float32:
            yield Case(f"{check.__name__[1:]} {dtype} {shape}", partial(_check, check, report, device, shape, dtype))


def _check(
    check: Callable[[Report, torch.Tensor], None],
    report: Report,
    device: torch.device,
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    logits = 3 * torch.randn(shape, device=device)
    logits[:, ::11] = -torch.inf
    check(report, logits.to(dtype))


def _draws(report: Report, logits: torch.Tensor) -> None:
    rows, device, detail = len(logits), logits.device, f"{logits.dtype} {list(logits.shape)}"
    temperature = torch.rand(rows, device=device) + 0.3
    top_k = torch.randint(0, 60, (rows,), device=device)
    top_p, min_p = 1 - 0.5 * torch.rand(rows, device=device), 0.05 * torch.rand(rows, device=device)
    temperature[::5], top_p[::3], min_p[::2] = 0.0, 1.0, 0.0
    with poisoned():
        floor = top_k_top_p(logits, temperature, top_k, top_p, min_p)
    wanted = top_k_top_p_reference(logits, temperature, top_k, top_p, min_p)
    # of tokens that lie at the edge of top_p, rounding decides
    report.number("top_k_top_p: rows that keep other tokens", float((floor != wanted).float().mean()), PARTING, detail)
    seeds, positions = torch.randint(1 << 60, (rows,), device=device), torch.arange(rows, device=device)
    columns = temperature, seeds, positions, positions % 3
    with poisoned():
        drawn = sample(logits, wanted, *columns)
    other = drawn != sample_reference(logits, wanted, *columns)
    report.number("sample: rows that draw other tokens", float(other.float().mean()), PARTING, detail)
    kept = logits.gather(1, drawn[:, None]).squeeze(1).float() >= wanted
    report.holds("sample: never below the floor", bool(kept.all()), detail)
    greedy = torch.zeros_like(temperature)
    got = sample(logits, torch.full_like(greedy, -torch.inf), greedy, *columns[1:])
    report.equal("sample: greedy", got, logits.argmax(dim=-1), detail)


def _reads(report: Report, logits: torch.Tensor) -> None:
    rows, detail = len(logits), f"{logits.dtype} {list(logits.shape)}"
    ids = torch.randint(logits.shape[1], (rows, 7), device=logits.device)
    with poisoned():
        logprobs, ranks = score(logits, ids)
    wanted = score_reference(logits.float(), ids)
    finite = wanted[0].isfinite()
    difference = (logprobs - wanted[0])[finite].abs()
    report.number("score: logprobs", float(difference.max()) if len(difference) else 0.0, 1e-3, detail)
    report.equal("score: impossible tokens", logprobs[~finite], wanted[0][~finite], detail)
    report.equal("score: ranks", ranks, wanted[1], detail)
    sound = logits.float().masked_fill(logits == -torch.inf, -9.0).to(logits.dtype)
    spoilt = sound.clone()
    spoilt[0, 5], spoilt[-1, -1] = torch.nan, torch.inf
    for name, given in (("sound", sound), ("spoilt", spoilt)):
        with poisoned():
            value, token_ids = best(given)
            finite_row = finite_rows(given)
        expected, expected_ids = best_reference(given)
        report.equal(f"best: value, {name} rows", value, expected, detail)
        whole = expected.isfinite()
        report.equal(f"best: ids, {name} rows", token_ids[whole], expected_ids[whole], detail)
        report.equal(f"finite_rows, {name} rows", finite_row, finite_rows_reference(given), detail)


def _edits(report: Report, logits: torch.Tensor) -> None:
    rows, vocab = logits.shape
    device, detail = logits.device, f"{list(logits.shape)}"
    changed = torch.arange(0, rows, 2, device=device)
    count = len(changed)
    tokens = torch.randint(-2, vocab + 2, (count + 2, 700), device=device, dtype=torch.int32)
    slots = torch.randperm(count + 2, device=device)[:count]
    known = torch.randint(0, 700, (count,), device=device)
    prompt = (known * torch.rand(count, device=device)).long()
    factors = [torch.rand(count, device=device) + 0.5 for _ in range(3)]
    sound = logits.masked_fill(logits == -torch.inf, -9.0)
    got, wanted = sound.clone(), sound.clone()
    penalize(got, changed, tokens, slots, known, prompt, *factors)
    penalize_reference(wanted, changed, tokens, slots, known, prompt, *factors)
    report.number("penalize", float((got - wanted).abs().max()), 1e-3, detail)
    report.equal("penalize: other rows", got[1::2], sound[1::2], detail)
    counts, ids = torch.randint(0, 700, (count + 2,), device=device), torch.randint(0, vocab, (count,), device=device)
    tables, expected = (tokens.clone(), counts.clone()), (tokens, counts)
    append_tokens(*tables, slots, ids)
    append_tokens_reference(*expected, slots, ids)
    report.equal("append_tokens: tokens", tables[0], expected[0], detail)
    report.equal("append_tokens: known", tables[1], expected[1], detail)
    words = torch.randint(-(2**31), 2**31, (count, -(-vocab // 32)), device=device, dtype=torch.int32)
    got, wanted = sound.clone(), sound.clone()
    mask_tokens(got, changed, words)
    mask_tokens_reference(wanted, changed, words)
    report.equal("mask_tokens", got, wanted, detail)
