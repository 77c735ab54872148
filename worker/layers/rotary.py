"""Angles of the rotary position embedding, for every published way of stretching the context."""

import math
from typing import NamedTuple

import torch

from quire.kernels.attention.query_factors import query_factors
from quire.kernels.attention.rope_angles import rope_angles
from quire.worker.specs.kinds.rope import RopeSpec

LEAST_WIDTH = 1e-9
"""Width of llama3's blend where its borders are one: a step."""


class Rotation(NamedTuple):
    """The effect that the positions of a step's tokens have on their queries and keys."""

    cos: torch.Tensor
    """float32 [T, head_dim / 2]"""
    sin: torch.Tensor
    of_queries: torch.Tensor | None = None
    """float32 [T]: what a token's queries are multiplied by; None: by nothing."""


class Rotary:
    """Positions -> cos and sin, once per step for all layers; nothing is tabulated, so no length is built in.

    "dynamic" (NTK-aware scaling by the current length): the token at position p turns with the frequencies of a
    sequence of p + 1 tokens. That is the published rule for every token that is generated, and for prompts within
    the original length. A longer prompt would there turn all its tokens with the frequencies of its whole length;
    a cache shared between prompts of different lengths cannot hold such keys.
    """

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        self._spec = spec
        self._frequencies = inverse_frequencies(spec).to(device)
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        self._exponents = exponents.to(device)
        self._pair_axes = torch.tensor(spec.pair_axes, device=device) if spec.pair_axes else None

    def rotation(self, positions: torch.Tensor) -> Rotation:
        """positions int64 [P, T], a row for each axis."""
        spec, of_queries = self._spec, None
        if spec.query_beta:
            ahead = int(spec.counts_own)
            of_queries = query_factors(positions[0], ahead, spec.queries_grow_every, spec.query_beta)
        return Rotation(*self(positions), of_queries)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [P, T], a row for each axis -> cos, sin float32 [T, head_dim / 2]"""
        if self._spec.type != "dynamic":
            return rope_angles(positions, self._frequencies, self._pair_axes, self._spec.attention_factor)
        of_pairs = positions.T  # [T, 1], or the position of each pair: [T, head_dim / 2]
        if self._pair_axes is not None:
            of_pairs = of_pairs.index_select(1, self._pair_axes)
        angles = of_pairs.float() * self._dynamic(of_pairs)
        scale = self._spec.attention_factor
        return angles.cos() * scale, angles.sin() * scale

    def _dynamic(self, positions: torch.Tensor) -> torch.Tensor:
        spec = self._spec
        lengths = (positions + 1).clamp(min=spec.original_max_position)
        stretch = spec.factor * lengths / spec.original_max_position - (spec.factor - 1)
        theta = spec.theta * stretch ** (spec.head_dim / (spec.head_dim - 2))
        return 1.0 / theta**self._exponents


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """float32 [head_dim / 2] on the CPU: radians per position; those of "dynamic" hold within the original length."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    plain = 1.0 / spec.theta**exponents
    if spec.type == "none":
        return torch.zeros_like(plain)
    if spec.type == "proportional":
        plain[spec.num_turning :] = 0
    if spec.type in ("linear", "proportional"):
        return plain / spec.factor
    if spec.type == "longrope":
        return 1.0 / (torch.tensor(spec.factors) * spec.theta**exponents)
    if spec.type == "llama3":
        return _llama3(plain, spec)
    if spec.type == "yarn":
        return _yarn(plain, spec)
    return plain


def _llama3(plain: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, those between blended."""
    turns = spec.original_max_position * plain / (2 * math.pi)
    width = spec.high_freq_factor - spec.low_freq_factor or LEAST_WIDTH
    keep = ((turns - spec.low_freq_factor) / width).clamp(0.0, 1.0)
    return (1 - keep) * plain / spec.factor + keep * plain


def _yarn(plain: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """YaRN (Peng et al., 2023): blend between stretched and kept along a ramp over the dimensions."""

    def dimension(num_turns: float) -> float:
        """The (real) dimension whose wave turns this often within the original context."""
        ratio = spec.original_max_position / (num_turns * 2 * math.pi)
        return spec.head_dim * math.log(ratio) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    width = high - low or 0.001  # a ramp without width is a step
    stretched = ((torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return plain / spec.factor * stretched + plain * (1 - stretched)
