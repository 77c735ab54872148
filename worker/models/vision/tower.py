"""The vision tower of Qwen3-VL: blocks over the patches of each image, and rows of a decoder made of squares of them,
of the last block's and of some before (DeepStack, Meng et al., 2024)."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.linear.activation import activation
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import LayerNorm
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import Grid, PatchRotary, PositionGrid, places
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec


class TowerBlock(nn.Module):
    """Attention within each frame of an item and feed-forward, each behind a norm."""

    def __init__(self, context: BuildContext, spec: VisionSpec) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.attention_norm = LayerNorm(context, hidden, spec.norm_eps)
        self.qkv = ReplicatedLinear(context.at("qkv"), hidden, 3 * hidden, bias=True)
        self.output = ReplicatedLinear(context.at("output"), hidden, hidden, bias=True)
        self.mlp_norm = LayerNorm(context, hidden, spec.norm_eps)
        self.up = ReplicatedLinear(context.at("up"), hidden, inner, bias=True)
        self.down = ReplicatedLinear(context.at("down"), inner, hidden, bias=True)
        self.num_heads, self.scale, self.activation = spec.num_heads, spec.head_dim**-0.5, spec.activation

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        starts: torch.Tensor,
        lengths: tuple[int, ...],
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `starts` int32 [R + 1] and `lengths` of the frames' runs of patches."""
        qkv = self.qkv.product(self.attention_norm(x))
        rope_in_place(qkv, *rotation, self.num_heads)
        x = x + self.output.product(encoder_attention(qkv, starts, lengths, self.num_heads, self.scale))
        return x + self.down.product(activation(self.up.product(self.mlp_norm(x)), self.activation))


class Merger(nn.Module):
    """Rows of the decoder, out of the patches of each square."""

    def __init__(self, context: BuildContext, spec: VisionSpec, norm_size: int) -> None:
        """`norm_size`: elements that are normalised together, those of a patch or of a square."""
        super().__init__()
        self.norm = LayerNorm(context, norm_size, spec.norm_eps)
        self.up = ReplicatedLinear(context.at("up"), spec.merged_size, spec.merged_size, bias=True)
        self.down = ReplicatedLinear(context.at("down"), spec.merged_size, spec.output_size, bias=True)
        self.norm_size, self.merged_size = norm_size, spec.merged_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T / merge², output]"""
        normed = self.norm(x.view(-1, self.norm_size)).view(-1, self.merged_size)
        return self.down.product(activation(self.up.product(normed), "gelu"))


class Tower(nn.Module):
    """The same on every rank: items are dealt to the ranks, and not their heads."""

    def __init__(self, spec: VisionSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        self.patches = PatchEmbedding(context.at("patches"), spec)
        self.positions = PositionGrid(context, spec)
        self.blocks = nn.ModuleList(TowerBlock(context.at(f"blocks.{n}"), spec) for n in range(spec.num_blocks))
        self.merger = Merger(context.at("merger"), spec, spec.hidden_size)
        self.deepstack = nn.ModuleList(
            Merger(context.at(f"deepstack.{n}"), spec, spec.merged_size) for n in range(len(spec.deepstack))
        )
        self._rotary = PatchRotary(spec, context.device)

    def forward(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """Items and their grids -> [tokens of all, row_size] of the model's dtype, item after item.

        pixels uint8 [frames, rows * patch, columns * patch, 3] on the device, of one frame or `temporal_patch_size`. A
        row is the token's embedding, and then what is added to it behind each of the decoder's first layers.
        """
        size = self.spec.patch_size
        for item, (frames, rows, columns) in zip(pixels, grids, strict=True):
            assert frames in (1, self.spec.temporal_patch_size)
            assert item.shape == (frames, rows * size, columns * size, CHANNELS)
        where = places(grids, self.spec.merge_size, pixels[0].device)
        x = self.patches(pixels)
        x = x + self.positions.interpolated(where).to(x.dtype)
        rotation = self._rotary(where)
        lengths = tuple(rows * columns for _, rows, columns in grids)
        starts = _starts(lengths, x.device)
        merged: list[torch.Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, starts, lengths)
            if number in self.spec.deepstack:
                merged.append(self.deepstack[len(merged)](x))
        return torch.cat((self.merger(x), *merged), dim=-1)


def _starts(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """int32 [R + 1], made on the device: a copy from the host would wait for all that is queued."""
    ends = accumulate(lengths, initial=0)
    return torch.cat([torch.full((1,), end, dtype=torch.int32, device=device) for end in ends])
