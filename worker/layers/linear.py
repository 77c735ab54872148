"""Linear layers and how each is dealt out to the ranks (Shoeybi et al., 2019): by rows, by columns, or not at all."""

from collections.abc import Callable

import torch

from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.rows import add
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.norm import Norm
from quire.worker.quant.apart import merged
from quire.worker.weights.parts import Slice, consecutive, kv_head_share, whole
from quire.worker.weights.shard import ShardedModule

Delta = Callable[[torch.Tensor, ForwardBatch], torch.Tensor]
"""(x [T, inputs], the step) -> what is added to the product of x, [T, outputs]: this rank's share of each."""


class Linear(ShardedModule):
    """`x @ W.T + b` over this rank's slices: x [T, inputs] -> [T, outputs]. Subclasses say which slices."""

    def __init__(
        self, context: BuildContext, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, bias: bool
    ) -> None:
        super().__init__()
        schemes = {name: (context.at(name) if name else context).scheme for name, _ in outputs}
        self.scheme = merged(schemes, outputs)
        self.delta: Delta | None = None
        """Added to the product: before the sum over ranks, and before the gate."""
        self.bias: torch.Tensor | None
        self.register_parameter("bias", None)
        self.scheme.create(self, outputs, inputs, context.dtype)
        if bias:
            self.declare("bias", context.dtype, consecutive(outputs))

    def finish(self) -> None:
        self.scheme.finish(self)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        out = self.scheme.apply(self, x, self.bias)
        return out if self.delta is None else out + self.delta(x, batch)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """The layer outside of a step, to which nothing is added."""
        return self.scheme.apply(self, x, self.bias)

    def normed(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: Norm | None,
        batch: ForwardBatch,
        gate: Gate | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer over `norm(x + residual)`, then the gated activation if asked for, and `x + residual`.

        Without a norm the layer is over the sum itself.
        """
        if norm is not None and norm.joins and self.delta is None:
            return self.scheme.apply_normed(self, x, residual, norm.stored("weight"), norm.eps, self.bias, gate)
        if norm is None:
            total = x if residual is None else add(residual, x)
            wide = self(total, batch)
        else:
            normed, total = (norm(x), x) if residual is None else norm.add(x, residual)
            wide = self(normed, batch)
        return (wide if gate is None else gated_activation(wide, gate)), total


class ReplicatedLinear(Linear):
    """Every rank holds the whole matrix, or several equally long ones, `names`, in one product."""

    def __init__(
        self, context: BuildContext, inputs: int, outputs: int, bias: bool = False, names: tuple[str, ...] = ("",)
    ) -> None:
        super().__init__(context, tuple((name, whole(outputs)) for name in names), whole(inputs), bias)


class ColumnLinear(Linear):
    """Each rank makes its share of the outputs from all inputs; `axis` names the outputs in messages."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str, bias: bool = False) -> None:
        super().__init__(context, (("", context.share(axis, outputs)),), whole(inputs), bias)


class MergedLinear(Linear):
    """Several equally long column layers in one product; each rank holds its share of every one."""

    def __init__(
        self, context: BuildContext, inputs: int, outputs: int, names: tuple[str, ...], axis: str, bias: bool = False
    ) -> None:
        share = context.share(axis, outputs)
        super().__init__(context, tuple((name, share) for name in names), whole(inputs), bias)


class QKVLinear(Linear):
    """Queries, keys and values in one product, dealt out by heads: parts "q", "k", "v", or those among them that have a
    matrix.

    With fewer key-value heads than ranks each head lives on several ranks, next to the queries that use it.
    """

    def __init__(
        self,
        context: BuildContext,
        hidden: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool = False,
        parts: str = "qkv",
    ) -> None:
        heads = context.share("num_attention_heads", num_heads)
        kv_heads = kv_head_share(num_kv_heads, context.group.rank, context.group.size)
        outputs = [(name, _scaled(heads if name == "q" else kv_heads, head_dim)) for name in parts]
        super().__init__(context, tuple(outputs), whole(hidden), bias)
        self.outputs = dict(outputs)
        self.num_heads = heads.length
        self.num_kv_heads = kv_heads.length
        self.head_dim = head_dim


class RowLinear(Linear):
    """Each rank multiplies its share of the inputs; the sum over ranks, then the bias once, is the output."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str, bias: bool = False) -> None:
        super().__init__(context, (("", whole(outputs)),), context.share(axis, inputs), bias)
        self.group = context.group

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self._of_all_ranks(self.share(x, batch))

    def share(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """This rank's part of the sum, without the bias."""
        out = self.scheme.apply(self, x, None)
        return out if self.delta is None else out + self.delta(x, batch)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """The layer outside of a step, to which nothing is added."""
        if self.group.size == 1:
            return self.scheme.apply(self, x, self.bias)
        return self._of_all_ranks(self.scheme.apply(self, x, None))

    def gated(self, x: torch.Tensor, kind: Gate, batch: ForwardBatch) -> torch.Tensor:
        """The layer over the gated activation of x [T, 2 * inputs]; worthwhile where the scheme joins the two."""
        if self.delta is not None:
            out: torch.Tensor = self(gated_activation(x, kind), batch)
            return out
        return self._of_all_ranks(self.scheme.apply_gated(self, x, kind, None))

    def _of_all_ranks(self, share: torch.Tensor) -> torch.Tensor:
        out = self.group.all_reduce(share)
        return out if self.bias is None else add(out, self.bias)


def _scaled(heads: Slice, head_dim: int) -> Slice:
    return Slice(heads.full * head_dim, heads.start * head_dim, heads.stop * head_dim)
