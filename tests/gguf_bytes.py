"""Bytes of GGUF files, right or wrong, for tests of their readers."""

import struct
from math import prod

U32, FLOAT, BOOL, TEXT, ARRAY = 4, 6, 7, 8, 9
CODES = {0: "B", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 12: "d"}
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 20: (32, 18), 23: (256, 136),
    30: (1, 2), 39: (32, 17), 40: (64, 36),
}  # fmt: skip
"""Type of a tensor -> values and bytes of a block."""


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def kind_of(value):
    if type(value) is int and value < 0:
        return 5
    return {bool: BOOL, int: U32, float: FLOAT, str: TEXT, list: ARRAY, bytes: ARRAY}[type(value)]


def value(one, kind=None):
    kind = kind_of(one) if kind is None else kind
    if kind == TEXT:
        return text(one)
    if kind != ARRAY:
        return struct.pack(f"<{CODES[kind]}", one)
    if isinstance(one, bytes):
        return struct.pack("<IQ", 0, len(one)) + one
    inner = kind_of(one[0]) if one else U32
    inner = 5 if inner == U32 and one and min(one) < 0 else inner
    return struct.pack("<IQ", inner, len(one)) + b"".join(value(each, inner) for each in one)


def key(name, one, kind=None):
    return text(name) + struct.pack("<I", kind_of(one) if kind is None else kind) + value(one, kind)


def info(name, shape, kind=0, offset=0):
    """`shape` outermost first."""
    return text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]) + struct.pack("<IQ", kind, offset)


def header(num_tensors=0, num_keys=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def padded(raw, alignment=32):
    return raw + bytes(-len(raw) % alignment)


def gguf(metadata, tensors, version=3):
    """A whole file. `tensors`: name -> shape of F32 zeros; or its type and shape; or these and its bytes."""
    infos, data = b"", bytearray()
    for name, given in tensors.items():
        kind, shape, *content = given if isinstance(given[-1], tuple | bytes) else (0, given)
        infos += info(name, shape, kind, len(data))
        block, size = BLOCKS[kind]
        data += content[0] if content else bytes(prod(shape) // block * size)
        data += bytes(-len(data) % 32)
    keys = b"".join(key(name, one) for name, one in metadata.items())
    return padded(header(len(tensors), len(metadata), version) + keys + infos) + data


LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.ggml.eos_token_id": 3,
}
"""Metadata of a whole model of a layer."""
TENSORS = {
    "token_embd.weight": (4, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.attn_v.weight": (16, 32),
    "blk.0.attn_output.weight": (32, 32),
    "blk.0.ffn_norm.weight": (32,),
    "blk.0.ffn_gate.weight": (32, 32),
    "blk.0.ffn_up.weight": (32, 32),
    "blk.0.ffn_down.weight": (32, 32),
}
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [2, 1, 1, 1],
    "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -0.5],
}
"""What another tokenizer changes in it."""
