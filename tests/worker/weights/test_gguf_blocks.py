"""Blocks of GGUF files unpacked: what codes, scales and minima mean is what the format's own package reads."""

import base64
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from gguf_meant import of_blocks

from quire.worker.weights.gguf.blocks import LAYOUTS, codes, minima, scale, unit
from quire.worker.weights.gguf.header import read_header
from quire.worker.weights.gguf.names import checkpoint_name, interleaved_heads
from quire.worker.weights.gguf.types import TYPES

MADE = Path(__file__).parent / "ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]
BLOCKS = json.loads((MADE / "blocks.json").read_text())
KINDS = {
    "llama-q8_0": "Q8_0",
    "llama-q4_0": "Q4_0",
    "llama-q4_1": "Q4_1",
    "llama-q5_0": "Q5_0",
    "llama-q5_1": "Q5_1",
    "llama-iq4_nl": "IQ4_NL",
    "llama-iq4_xs": "IQ4_XS",
    "llama-mxfp4": "MXFP4",
}


def blocks(path, tensor):
    """A tensor's blocks, uint8 [O, blocks, bytes]."""
    raw = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.offset)
    return torch.from_numpy(raw).view(tensor.shape[0], -1, tensor.type.block_bytes)


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_those_of_the_formats_own_package(name):
    seen = 0
    header = read_header(MADE / f"{name}.gguf")
    for stored, tensor in header.tensors.items():
        if tensor.type.name != KINDS[name] or interleaved_heads(stored, header.metadata):
            continue
        raw = blocks(header.path, tensor)
        digest = EXPECTED[name]["digests"][checkpoint_name(stored, header.metadata)]
        values = of_blocks(raw, KINDS[name])
        assert values.shape == tensor.shape
        assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest() == digest, stored
        seen += 1
    assert seen >= 3


@pytest.mark.parametrize("kind", BLOCKS)
def test_random_blocks_mean_what_the_formats_own_package_reads(kind):
    """To the bit, with scales that are subnormal, zero and as large as they get."""
    wanted = BLOCKS[kind]
    raw = torch.frombuffer(bytearray(base64.b64decode(wanted["blocks"])), dtype=torch.uint8).view(2, 8, -1)
    values = of_blocks(raw, kind)
    assert values.shape == (2, 8 * next(one.block for one in TYPES.values() if one.name == kind))
    assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest() == wanted["digest"]


def test_every_type_has_random_blocks():
    assert BLOCKS.keys() == LAYOUTS.keys() | {"Q2_K"}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "IQ4_NL"])
def test_every_code_is_unpacked_to_its_place(kind):
    layout = LAYOUTS[kind]
    drawn = torch.Generator().manual_seed(0)
    wanted = torch.randint(0, 1 << layout.bits, (3, 64), generator=drawn, dtype=torch.uint8)
    wanted[0, :2] = torch.tensor([0, (1 << layout.bits) - 1])
    grouped = wanted.view(3, 2, 32)
    packed = (grouped ^ 0x80) if layout.bits == 8 else grouped[..., :16] | grouped[..., 16:] << 4
    halves = torch.tensor([0.5, -2.0] if layout.has_minima else [0.5], dtype=torch.float16)
    head = halves.view(torch.uint8).expand(3, 2, -1)
    raw = torch.cat((head, packed), -1)
    assert torch.equal(codes(raw, layout), wanted)
    assert torch.equal(scale(raw, layout), torch.full((3, 2), 0.5, dtype=torch.float16))
    if layout.has_minima:
        assert torch.equal(minima(raw, layout), torch.full((3, 2), 2.0, dtype=torch.float16))


def test_scales_of_superblocks_with_a_table_are_levels_about_zero():
    """Six bits and 32 more: the upper two of eight groups in a word, the lower four of two groups in a byte."""
    levels = torch.tensor([[-32, -31, -17, -1, 0, 1, 16, 31], [31, 5, -9, 12, -20, 0, -32, 7]], dtype=torch.int8)
    stored = (levels.int() + 32).tolist()
    raw = torch.zeros((2, 1, 136), dtype=torch.uint8)
    for row, eight in enumerate(stored):
        tops = sum((level >> 4) << 2 * group for group, level in enumerate(eight))
        lows = [eight[group] & 15 | (eight[group + 1] & 15) << 4 for group in range(0, 8, 2)]
        raw[row, 0, :8] = torch.tensor([0, 0x3C, tops & 255, tops >> 8, *lows], dtype=torch.uint8)
    assert torch.equal(scale(raw, LAYOUTS["IQ4_XS"]), levels)
    assert torch.equal(unit(raw, LAYOUTS["IQ4_XS"]), torch.ones((2, 1), dtype=torch.float16))


def test_powers_are_bytes():
    layout = LAYOUTS["MXFP4"]
    raw = torch.tensor([[[128, *[0x80] * 16]], [[1, *[0x19] * 16]]], dtype=torch.uint8)
    assert scale(raw, layout).dtype == torch.float8_e8m0fnu
    assert scale(raw, layout).view(torch.uint8).tolist() == [[128], [1]]
    assert codes(raw, layout)[:, 15:17].tolist() == [[0, 8], [9, 1]]
