"""The stages of sampling, beside torch's own sorts and reductions."""

from collections.abc import Callable, Iterator

import torch

from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Layer
from quire.kernels.sampling.append_tokens import append_tokens, append_tokens_reference
from quire.kernels.sampling.penalize import mask_tokens, mask_tokens_reference, penalize, penalize_reference
from quire.kernels.sampling.sample import sample, sample_reference
from quire.kernels.sampling.score import best, score, score_reference
from quire.kernels.sampling.top_k_top_p import top_k_top_p, top_k_top_p_reference

HISTORY = 1024
"""Tokens of each sequence, for penalties."""
TOP_K, TOP_P = 50, 0.9


def cases(layer: Layer, rows: int) -> Iterator[Case]:
    """Every stage for `rows` rows of a vocabulary."""
    name, vocab = f"{rows} x {layer.vocab}", layer.vocab
    once = cost.logits(rows, vocab, layer.dtype.itemsize)
    twice = cost.logits(rows, 2 * vocab, layer.dtype.itemsize)
    # a bit for each token is read, and a random half of the logits overwritten
    masked = cost.Cost(rows * (vocab // 8 + vocab // 2 * 4))
    yield Case("best", name, once, lambda device: _best(layer, rows, device))
    # two draws of one logit's difference may part ways, so ids are not compared
    yield Case(
        "sample", f"{name}, temperature", once, lambda device: _sample(layer, rows, device), True, tolerance=None
    )
    yield Case("sample", f"{name}, greedy", once, lambda device: _sample(layer, rows, device, 0.0), peer_waits=True)
    yield Case(
        "top_k_top_p", f"{name}, top-k top-p", once, lambda device: _top_k_top_p(layer, rows, device), peer_waits=True
    )
    yield Case(
        "top_k_top_p and sample",
        f"{name}, top-k top-p",
        twice,
        lambda device: _top_k_top_p_and_sample(layer, rows, device),
        True,
        tolerance=None,
    )
    yield Case("append_tokens", f"{rows} rows", cost.append_tokens(rows), lambda device: _append(layer, rows, device))
    yield Case("score", f"{name}, 6 ids", once, lambda device: _score(layer, rows, device))
    # a penalty applied again and again is no longer the same, so neither is compared
    yield Case(
        "penalize", name, cost.Cost(rows * HISTORY * 12), lambda device: _penalize(layer, rows, device), True, None
    )
    yield Case("mask_tokens", name, masked, lambda device: _mask(layer, rows, device), True, None)


def _best(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits = normal(device, rows, layer.vocab, dtype=layer.dtype)
    return Pair(lambda: best(logits)[0], lambda: logits.max(dim=-1).values)


def _columns(rows: int, device: torch.device, temperature: float) -> tuple[torch.Tensor, ...]:
    """temperature, seeds, positions, output indices"""
    seeds = torch.randint(1 << 40, (rows,), device=device)
    return torch.full((rows,), temperature, device=device), seeds, torch.arange(rows, device=device), seeds % 2


def _sample(layer: Layer, rows: int, device: torch.device, temperature: float = 0.8) -> Pair:
    logits, columns = normal(device, rows, layer.vocab, dtype=layer.dtype), _columns(rows, device, temperature)
    floor = torch.full((rows,), -torch.inf, device=device)
    return Pair(lambda: sample(logits, floor, *columns), lambda: sample_reference(logits, floor, *columns))


def _cuts(rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """temperature, top_k, top_p, min_p"""
    full = torch.full((rows,), 0.8, device=device)
    top_k = torch.full((rows,), TOP_K, device=device)
    return full, top_k, torch.full_like(full, TOP_P), torch.zeros_like(full)


def _top_k_top_p(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits, cuts = normal(device, rows, layer.vocab, dtype=layer.dtype), _cuts(rows, device)
    return Pair(lambda: top_k_top_p(logits, *cuts), lambda: top_k_top_p_reference(logits, *cuts))


def _top_k_top_p_and_sample(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits, cuts = normal(device, rows, layer.vocab, dtype=layer.dtype), _cuts(rows, device)
    columns = _columns(rows, device, 0.8)
    return Pair(
        lambda: sample(logits, top_k_top_p(logits, *cuts), *columns),
        lambda: sample_reference(logits, top_k_top_p_reference(logits, *cuts), *columns),
    )


def _append(layer: Layer, rows: int, device: torch.device) -> Pair:
    tokens = torch.zeros((rows, HISTORY), device=device, dtype=torch.int32)
    slots, token_ids = torch.randperm(rows, device=device), torch.randint(layer.vocab, (rows,), device=device)
    known = torch.zeros_like(slots)

    def run(form: Callable[..., None]) -> torch.Tensor:
        known.zero_()  # or call after call would fill the table
        form(tokens, known, slots, token_ids)
        return known

    return Pair(lambda: run(append_tokens), lambda: run(append_tokens_reference))


def _score(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits = normal(device, rows, layer.vocab, dtype=layer.dtype)
    ids = torch.randint(layer.vocab, (rows, 6), device=device)
    return Pair(lambda: score(logits, ids)[0], lambda: score_reference(logits, ids)[0])


def _penalize(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits = normal(device, rows, layer.vocab)
    tokens = torch.randint(layer.vocab, (rows, HISTORY), device=device, dtype=torch.int32)
    every = torch.arange(rows, device=device)
    known, prompt = torch.full_like(every, HISTORY), torch.full_like(every, HISTORY // 2)
    factors = [torch.full((rows,), value, device=device) for value in (1.1, 0.1, 0.1)]
    arguments = (logits, every, tokens, every, known, prompt, *factors)
    return Pair(lambda: penalize(*arguments), lambda: penalize_reference(*arguments))


def _mask(layer: Layer, rows: int, device: torch.device) -> Pair:
    logits, every = normal(device, rows, layer.vocab), torch.arange(rows, device=device)
    bits = torch.randint(-(2**31), 2**31, (rows, -(-layer.vocab // 32)), device=device, dtype=torch.int32)
    return Pair(lambda: mask_tokens(logits, every, bits), lambda: mask_tokens_reference(logits, every, bits))
