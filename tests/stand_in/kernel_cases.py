"""The wrappers of `kernels/gpu` at the shapes that are specialized apart: one, a multiple of 16, and neither."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import patch

import expert_cases
import torch

from quire.kernels.attention.attention import AttentionRule, PagedBatch, paged_attention
from quire.kernels.attention.block_copy import copy_blocks
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, tile_shape
from quire.kernels.attention.window import Chunk, Window
from quire.kernels.experts.experts import experts
from quire.kernels.experts.route import Routing, route
from quire.kernels.linear.activation import ACTIVATIONS, GATES, activation, gated_activation
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.embed_group_words import embed_group_words
from quire.kernels.linear.embedding import embed_shard
from quire.kernels.linear.layer_norm import layer_norm
from quire.kernels.linear.linear import linear, norm_linear
from quire.kernels.linear.linear_f8 import gated_linear_f8, linear_f8, norm_linear_f8
from quire.kernels.linear.linear_f8_blocks import gated_linear_f8_blocks, linear_f8_blocks, norm_linear_f8_blocks
from quire.kernels.linear.linear_group_words import linear_group_words, norm_linear_group_words
from quire.kernels.linear.linear_int8 import gated_linear_int8, linear_int8, norm_linear_int8, pack
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs
from quire.kernels.sampling.append_tokens import append_tokens
from quire.kernels.sampling.penalize import mask_tokens, penalize
from quire.kernels.sampling.sample import sample
from quire.kernels.sampling.score import best, finite_rows, score
from quire.kernels.sampling.top_k_top_p import top_k_top_p

F32, F16, BF16, F8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
COUNTS = (1, 5, 16)
FLOATS = (16, F8), (32, F8), (32, torch.float8_e8m0fnu)
"""Groups and scales of 4-bit floats."""
Case = Callable[[], None]


def cases(capability: int) -> Iterator[tuple[str, Case]]:
    """On Hopper every form; elsewhere those whose tiles or instructions hang on the chip. The models run the rest."""
    dims, dtypes = ((16, 32, 64, 72, 80, 96, 128, 256), (F32, F16, BF16)) if capability == 90 else ((256,), (F32, BF16))
    for dtype in dtypes:
        chosen = (64,) if dtype == F16 else dims  # tiles as for the other type of its size
        name = f"encoder {dtype}".replace("torch.", "")
        yield name, lambda dtype=dtype, dims=chosen: _encoder(dtype, dims)
    if capability == 90:
        yield "steps", _steps
        yield "rows", _rows
        yield "norms", _norms
        yield "linear", _linear
        yield "groups", _groups
        yield "experts", _experts
        yield "experts in words", expert_cases.words
    yield "linear f8", _linear_f8
    yield "linear f8 blocks", _linear_f8_blocks
    yield "linear int8", _linear_int8
    yield "experts of 8 bits", expert_cases.eights
    for forms in _attention_forms(capability):
        query, cache, head_dim, page, options = forms
        name = f"attention d{head_dim} {query} to {cache} page {page}{' options' if options else ''}"
        yield name.replace("torch.", ""), lambda forms=forms: _attention(*forms)
    if capability == 90:
        yield "attention of chunks, looking ahead", _looking_ahead


def _attention_forms(capability: int) -> Iterator[tuple[torch.dtype, torch.dtype, int, int, bool]]:
    """Type of the model and of the cache, head, page, whether with window, soft cap and sinks."""
    yield BF16, BF16, 256, 16, False
    yield BF16, BF16, 512, 16, False
    yield F32, F32, 128, 16, False
    if capability != 90:
        return
    yield BF16, BF16, 8, 16, False  # narrower than a product
    yield BF16, BF16, 128, 16, True
    yield BF16, BF16, 80, 16, False
    yield F32, F32, 256, 16, True
    yield F32, F8, 64, 16, False
    yield F32, F32, 512, 16, False
    yield BF16, F8, 512, 16, True
    yield BF16, F8, 256, 16, True
    for head_dim, page in ((64, 64), (128, 64), (128, 128)):  # the specialized body
        yield BF16, BF16, head_dim, page, head_dim == 128
    yield BF16, F8, 128, 64, True
    yield F16, F8, 128, 128, False


def _attention(query_type: torch.dtype, cache_type: torch.dtype, head_dim: int, page: int, options: bool) -> None:
    """The store of a step's keys, and attention of decodes alone and beside prompts."""
    kv_heads, group = 2, 4
    width = kv_heads * (group + 2) * head_dim
    keys, values = torch.zeros((2, 20, page, kv_heads, head_dim)).to(cache_type)
    scale = torch.ones(kv_heads) if cache_type == F8 else None
    window = 100 if options else None
    rule = AttentionRule(head_dim**-0.5, window, 30.0 if options else None)
    sinks = torch.zeros(kv_heads * group) if options else None
    for lengths in ((1,), (1,) * 16, (1, 1, 130), (40,)):
        num_tokens = sum(lengths)
        angles = torch.zeros((2, num_tokens, head_dim // 2))
        gains = (torch.ones(head_dim, dtype=query_type),) * 2 if options else (None, None)
        slots = torch.zeros(num_tokens, dtype=torch.int64)
        qkv = torch.zeros((num_tokens, width), dtype=query_type)
        query = rope_store_kv(qkv, *angles, keys, values, slots, *gains, 1e-5 if options else 0.0, scale, scale)
        paged_attention(query, keys, values, _batch(lengths, group, window), rule, sinks, scale, scale)


def _looking_ahead() -> None:
    """A prompt whose tokens see each other, and a token, in layers of chunks."""
    keys, values = torch.zeros((2, 20, 16, 2, 128), dtype=BF16)
    rule = AttentionRule(128**-0.5, Chunk(64), looks_ahead=True)
    batch = replace(_batch((1, 130), 4, rule.window), last_visible=torch.tensor([0, *[129] * 130], dtype=torch.int32))
    paged_attention(torch.zeros((2, 131, 4, 128), dtype=BF16), keys, values, batch, rule)


def _batch(lengths: tuple[int, ...], group: int, window: Window | None) -> PagedBatch:
    rows = len(lengths)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    schedule = TileSchedule(torch.zeros_like(starts), torch.zeros_like(starts))
    fill_tile_schedule(seq_lens, starts, window, *tile_shape("cuda", group), schedule)
    return PagedBatch(
        torch.zeros((rows, 9), dtype=torch.int32), torch.zeros(rows, dtype=torch.int32), seq_lens, starts,
        sum(length == 1 for length in lengths), lengths, lengths, {window: schedule},
    )  # fmt: skip


def _encoder(dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    for head_dim in dims:
        for lengths in ((3, 67), (3, 900)):
            starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            qkv = torch.zeros((sum(lengths), 36 * head_dim), dtype=dtype)
            rope_in_place(qkv, *torch.zeros((2, sum(lengths), head_dim // 2)), 12)
            encoder_attention(qkv, starts, lengths, 12, head_dim**-0.5)
    size = 12 * 64
    x, gain = torch.zeros((3, size), dtype=dtype), torch.ones(size, dtype=dtype)
    for kind in ACTIVATIONS:
        activation(x, kind)
    for residual in (None, x):
        layer_norm(x, residual, gain, gain, 1e-12)


def _norms() -> None:
    for size, dtype in itertools.product((1024, 4096, 16384), (BF16, F32)):
        gain = torch.ones(size, dtype=dtype)
        for rows in COUNTS:
            x = torch.zeros((rows, size), dtype=dtype)
            rms_norm(x, gain, 1e-5)
            add_rms_norm(x, x, gain, 1e-5)
    for kind in GATES:
        gated_activation(torch.zeros((70_000, 256), dtype=BF16), kind)  # more tokens than a grid is high


def _linear() -> None:
    """Layers split over their inputs and not, with what may surround them; tiles hang on sizes, not on 16-bit types."""
    for size_in, size_out in ((4096, 6144), (1024, 3072), (2880, 4096), (4096, 1024), (64, 192)):
        for dtype in (BF16, F16) if size_in == 4096 else (BF16,):
            weight, gain = torch.empty((size_out, size_in), dtype=dtype), torch.empty(size_in, dtype=dtype)
            bias = torch.empty(size_out, dtype=dtype)
            for rows in (1, 16, 17):
                x = torch.empty((rows, size_in), dtype=dtype)
                linear(x, weight, bias)
                norm_linear(x, None, gain, 1e-5, weight, None, None)
                norm_linear(x, x, gain, 1e-5, weight, None, "silu")


def _groups() -> None:
    """Codes of groups of every kind, in layers that are split and not: few tokens, more, and many in pieces."""
    kinds = (4, 128, torch.uint8, F16), (8, 32, None, F16), (4, 32, BF16, BF16), (8, 4096, F32, F32)
    for (bits, size, offset_type, scale_type), size_out in itertools.product(kinds, (1024, 16640)):
        words = torch.zeros((4096 * bits // 1024, size_out, 32), dtype=torch.int32)
        scale = torch.zeros((4096 // size, size_out), dtype=scale_type)
        offset = None if offset_type is None else torch.zeros(scale.shape, dtype=offset_type)
        for rows in (1, 17, 65):
            x, bias = torch.empty((rows, 4096), dtype=BF16), torch.empty(size_out, dtype=BF16)
            linear_group_words(x, words, scale, offset, bias, bits)
            norm_linear_group_words(x, x, x[0], 1e-5, words, scale, offset, None, "silu", bits)
    for (size, scale_type), size_out in itertools.product(FLOATS, (1024, 16640)):
        words = torch.zeros((16, size_out, 32), dtype=torch.int32)
        scale = torch.zeros((4096 // size, size_out), dtype=torch.uint8).view(scale_type)
        unit = torch.ones(size_out) if scale_type == F8 else None
        for rows in (1, 17, 65):
            x, bias = torch.empty((rows, 4096), dtype=BF16), torch.empty(size_out, dtype=BF16)
            linear_group_words(x, words, scale, None, bias, 4, unit, "e2m1")
            norm_linear_group_words(x, x, x[0], 1e-5, words, scale, None, None, "silu", 4, unit, "e2m1")
    levels: Table = "iq4_nl"
    gguf = (4, 32, 2, ""), (8, 32, 2, ""), (8, 16, 1, ""), (4, 32, 1, levels), (4, 32, 0, levels)
    for (bits, size, count, table), size_out in itertools.product(gguf, (1024, 16640)):
        words = torch.zeros((4096 * bits // 1024, size_out, 32), dtype=torch.int32)
        scale = torch.zeros((4096 // size, size_out), dtype=torch.int8 if count else F16)
        offset = torch.zeros_like(scale) if count == 2 else None
        unit = torch.ones((count, 16, size_out), dtype=F16) if count else None
        embed_group_words(torch.arange(17), words, scale, offset, 0, size_out, 4096, bits, BF16, unit, table)
        for rows in (1, 17, 65):
            x, bias = torch.empty((rows, 4096), dtype=BF16), torch.empty(size_out, dtype=BF16)
            linear_group_words(x, words, scale, offset, bias, bits, unit, table)
            norm_linear_group_words(x, x, x[0], 1e-5, words, scale, offset, None, "silu", bits, unit, table)


def _experts() -> None:
    """Few pairs and sorted ones, of whole layers and of a rank's half; rules of every kind."""
    for dtype, sizes in ((BF16, (128, 8, 2048, 768)), (F16, (60, 4, 70, 33)), (F32, (8, 2, 256, 48))):
        count, k, hidden, inner = sizes
        gate_up = torch.empty((count, 2 * inner, hidden), dtype=dtype)
        down = torch.empty((count, hidden, inner), dtype=dtype)
        for rows in (1, 16, 512, 8192) if dtype == BF16 else (1, 16, 17):
            x, ids = torch.empty((rows, hidden), dtype=dtype), torch.zeros((rows, k), dtype=torch.int32)
            for first in (0, 7):
                experts(x, ids, torch.ones((rows, k)), gate_up, down, "silu", first)
        for kind in GATES:
            experts(x[:1], ids[:1], torch.ones((1, k)), gate_up, down, kind, 0)
        biases = torch.empty((count, 2 * inner), dtype=dtype), torch.empty((count, hidden), dtype=dtype)
        for rows in (1, 17):
            x, ids = torch.empty((rows, hidden), dtype=dtype), torch.zeros((rows, k), dtype=torch.int32)
            experts(x, ids, torch.ones((rows, k)), gate_up, down, "swigluoai", 0, *biases)
    bias = torch.zeros(256)
    for rows in COUNTS:
        slots = torch.zeros(rows, dtype=torch.int64)
        for dtype in (BF16, F32):
            route(torch.zeros((rows, 128), dtype=dtype), None, slots, Routing(128, 8, renormalize=True))
            route(torch.zeros((rows, 61), dtype=dtype), None, slots, Routing(60, 4))
        rule = Routing(256, 8, "sigmoid", True, 2.5, num_groups=8, top_groups=4)
        route(torch.zeros((rows, 256), dtype=F32), bias, slots, rule)


def _linear_f8() -> None:
    """Layers split over their inputs and not, odd ones, of codes and of numbers as they are."""
    for size_in, size_out, dtype in ((4096, 1024, BF16), (2880, 16400, BF16), (70, 33, F16), (256, 48, F32)):
        weight, gain = torch.zeros((size_out, size_in)).to(F8), torch.ones(size_in, dtype=dtype)
        scale, bias = torch.ones(size_out), torch.zeros(size_out, dtype=dtype)
        for rows in (1, 17, 64, 65):
            x = torch.zeros((rows, size_in), dtype=dtype)
            for activations, static in (("token", None), ("static", torch.ones(1)), ("none", None)):
                linear_f8(x, weight, scale, bias, activations, static)
            norm_linear_f8(x, x, gain, 1e-5, weight, scale, None, None, "token", None)
            for kind in GATES:
                gated_linear_f8(torch.cat((x, x), 1), kind, weight, scale, None, "token", None)


def _linear_f8_blocks() -> None:
    """Layers split over their inputs and not, odd ones, of codes and of numbers as they are."""
    for size_in, size_out, dtype in ((4096, 1024, BF16), (2880, 16400, BF16), (70, 48, F16), (256, 48, F32)):
        weight, gain = torch.zeros((size_out, size_in)).to(F8), torch.ones(size_in, dtype=dtype)
        scale, bias = torch.ones((-(-size_out // 128), -(-size_in // 128))), torch.zeros(size_out, dtype=dtype)
        for rows in (1, 17, 64, 65):
            x = torch.zeros((rows, size_in), dtype=dtype)
            for activations, added in (("token", bias), ("token", None), ("none", bias)):
                linear_f8_blocks(x, weight, scale, added, activations)
            norm_linear_f8_blocks(x, x, gain, 1e-5, weight, scale, None, None, "token")
            for kind in GATES:
                gated_linear_f8_blocks(torch.cat((x, x), 1), kind, weight, scale, None, "token")
    with patch.object(torch.version, "cuda", "13.0"):  # its cuBLAS multiplies blocks on Hopper
        for size_in in (4096, 896):
            x, weight = torch.zeros((65, size_in), dtype=BF16), torch.zeros((1024, size_in)).to(F8)
            for added in (None, torch.zeros(1024, dtype=BF16)):
                linear_f8_blocks(x, weight, torch.ones((8, size_in // 128)), added, "token")


def _linear_int8() -> None:
    """Layers split over their inputs and not, and odd ones."""
    for size_in, size_out, dtype in ((4096, 1024, BF16), (2880, 16400, BF16), (70, 33, F16), (256, 48, F32)):
        gain, bias = torch.ones(size_in, dtype=dtype), torch.zeros(size_out, dtype=dtype)
        weight, scale = pack(torch.zeros((size_out, size_in), dtype=dtype))
        for rows in (1, 17, 64, 65):
            x = torch.zeros((rows, size_in), dtype=dtype)
            linear_int8(x, weight, scale, bias)
            for residual in (None, x):
                norm_linear_int8(x, residual, gain, 1e-5, weight, scale, None, None)
            for kind in GATES:
                gated_linear_int8(torch.cat((x, x), 1), kind, weight, scale, None)


def _steps() -> None:
    """What makes a step's inputs, embeds its tokens and copies its blocks."""
    for rows in COUNTS:
        tokens = torch.zeros((rows, 40), dtype=torch.int32)
        tables = torch.zeros((rows, 3), dtype=torch.int32)
        given = torch.ones((3, rows), dtype=torch.int32)
        whole = [torch.zeros(shape, dtype=torch.int64) for shape in ((rows,), (1, rows), (rows,))]
        out = StepInputs(*whole, torch.zeros(rows + 1, dtype=torch.int32), *(torch.zeros_like(given) for _ in range(2)))
        out = out._replace(seq_lens=out.seq_lens[0], slots=out.slots[0])
        prepare_inputs(tokens, torch.ones(rows, dtype=torch.int64), tables, given, 16, out)
        for window in (None, 64):
            schedule = TileSchedule(torch.zeros_like(out.query_starts), torch.zeros_like(out.query_starts))
            fill_tile_schedule(out.seq_lens, out.query_starts, window, *tile_shape("cuda", 4), schedule)
        embed_shard(out.token_ids, torch.zeros((320, 4096), dtype=BF16), 0, 320)
        for dtype in (BF16, torch.float8_e4m3fn):
            keys, values = torch.zeros((2, 32, 16, 8, 128)).to(dtype)
            copy_blocks(keys, values, torch.arange(rows), torch.arange(rows) + 16)


def _rows() -> None:
    """Everything that is done to logits; columns begin anywhere in the step's upload."""
    for vocab, dtype, rows in itertools.product((320, 128_256), (F32, BF16), COUNTS):
        logits = torch.zeros((rows, vocab), dtype=dtype)
        floats = torch.ones(4 * rows + 4).split(rows)
        ints = torch.ones(4 * rows + 4, dtype=torch.int64).split(rows)
        best(logits[:, : vocab - 1])
        finite_rows(logits)
        floor = top_k_top_p(logits, floats[0], ints[0], floats[1], floats[2])
        sample(logits, floor, floats[0], *ints[:3])
        append_tokens(torch.zeros((rows, 40), dtype=torch.int32), ints[2].contiguous(), torch.arange(rows), ints[0])
        for num_ids in (1, 3):
            score(logits, torch.zeros((rows, num_ids), dtype=torch.int64))
        wide, which = logits.float(), torch.arange(rows)
        tokens = torch.zeros((rows + 1, 50), dtype=torch.int32)[:, :33]
        penalize(wide, which, tokens, which, *ints[:2], *floats[:3])
        mask_tokens(wide, which, torch.zeros((rows, -(-vocab // 32)), dtype=torch.int32))
