"""The shapes that `quire bench kernels` measures: layers of two 8B models on a GPU, of a 100M one on a CPU."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a model, and its vocabulary."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    qk_norm: bool
    dtype: torch.dtype

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


LLAMA_8B = Layer("llama-8b", 4096, 32, 8, 128, 14336, 128_256, False, torch.bfloat16)
QWEN3_8B = Layer("qwen3-8b", 4096, 32, 8, 128, 12288, 151_936, True, torch.bfloat16)
LLAMA_100M = Layer("llama-100m", 768, 12, 4, 64, 2048, 32_000, False, torch.float32)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer."""

    name: str
    experts: int
    k: int
    """Experts of each token."""
    hidden: int
    inner: int
    dtype: torch.dtype


QWEN3_30B_A3B = Experts("qwen3-30b-a3b", 128, 8, 2048, 768, torch.bfloat16)
MIXTRAL_8X7B = Experts("mixtral-8x7b", 8, 2, 4096, 14336, torch.bfloat16)
A3B_100M = Experts("a3b-100m", 64, 4, 768, 256, torch.float32)
"""The shape of the first one, scaled down."""


@dataclass(frozen=True, slots=True)
class Attend:
    """A batch of attention: (tokens to run, tokens of the sequence) of each group of equal rows, and how many."""

    name: str
    rows: tuple[tuple[int, int, int], ...]
    """(number of rows, query tokens, sequence tokens)"""
    block_size: int = 16
    fp8: bool = False


@dataclass(frozen=True, slots=True)
class Tower:
    """Attention of one layer of a tower of vision, over images of one size."""

    heads: int
    head_dim: int
    images: int
    patches: int
    """Patches of each."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes that are measured on one kind of device."""

    layers: tuple[Layer, ...]
    tokens: tuple[int, ...]
    """Tokens of norms, rotations, activations, embeddings."""
    linear_tokens: tuple[int, ...]
    word_tokens: tuple[int, ...]
    """Tokens of the products that only GPUs have: on words of codes, and behind a gate."""
    block_tokens: tuple[int, ...]
    """Tokens of the products on 8-bit floats in blocks that only GPUs have: the most of ours, and cuBLAS's."""
    experts: tuple[Experts, ...]
    expert_tokens: tuple[int, ...]
    coded_expert_tokens: tuple[int, ...]
    """Tokens of quantized experts as GPUs take them."""
    attention: tuple[Attend, ...]
    towers: tuple[Tower, ...]
    sampling_rows: tuple[int, ...]
    decode_rows: int
    """Rows of a step, for what prepares it."""
    cold_bytes: int
    """Buffers are rotated through more than this, so that none is still in a cache."""


CUDA = Shapes(
    layers=(LLAMA_8B, QWEN3_8B),
    tokens=(1, 4096),
    linear_tokens=(1, 4, 16),
    word_tokens=(1, 16, 32, 64, 512),
    block_tokens=(64, 1024, 4096),
    experts=(QWEN3_30B_A3B, MIXTRAL_8X7B),
    expert_tokens=(1, 16, 32, 512, 4096),
    coded_expert_tokens=(1, 32, 128, 512, 4096),
    attention=(
        Attend("prefill 4k", ((1, 4096, 4096),)),
        Attend("prefill 8k", ((1, 8192, 8192),)),
        Attend("prefill 8k, pages of 64", ((1, 8192, 8192),), block_size=64),
        Attend("prefill 8k, pages of 128", ((1, 8192, 8192),), block_size=128),
        Attend("extend 16 x 256 over 4k", ((16, 256, 4096),)),
        Attend("decode 64 x 4k", ((64, 1, 4096),)),
        Attend("decode 256 x 2k", ((256, 1, 2048),)),
        Attend("decode 1 x 128k + 31 x 4k", ((1, 1, 131_072), (31, 1, 4096))),
        Attend("decode 64 x 4k, fp8", ((64, 1, 4096),), fp8=True),
    ),
    towers=(Tower(16, 72, 1, 3772, torch.bfloat16), Tower(16, 72, 8, 1008, torch.bfloat16)),
    sampling_rows=(1, 256),
    decode_rows=256,
    cold_bytes=160 << 20,
)
CPU = Shapes(
    layers=(LLAMA_100M,),
    tokens=(1, 16, 1024),
    linear_tokens=(1, 16, 128),
    word_tokens=(),
    block_tokens=(),
    experts=(A3B_100M,),
    expert_tokens=(1, 16, 128),
    coded_expert_tokens=(),
    attention=(
        Attend("prefill 1k", ((1, 1024, 1024),)),
        Attend("decode 1 x 1k", ((1, 1, 1024),)),
        Attend("decode 16 x 192", ((16, 1, 192),)),
    ),
    towers=(Tower(16, 72, 1, 1008, torch.float32),),
    sampling_rows=(1, 16),
    decode_rows=16,
    cold_bytes=256 << 20,
)
