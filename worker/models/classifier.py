"""The head that gives labels numbers, behind a pooled hidden state."""

import torch
from torch import nn

from quire.worker.build_context import BuildContext
from quire.worker.specs.head_spec import HeadSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule


class Projection(ShardedModule):
    """`x @ W.T + b`, whole on every rank and in no form but its own: it is small, and its numbers are the answer."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.declare("weight", context.dtype, (Part("", (whole(outputs), whole(inputs))),))
        self.has_bias = bias
        if bias:
            self.declare("bias", context.dtype, (Part("", (whole(outputs),)),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [S, inputs] -> float32 [S, outputs]"""
        bias = self.stored("bias").float() if self.has_bias else None
        return nn.functional.linear(x, self.stored("weight").float(), bias)


class Classifier(nn.Module):
    """A number for each label: a projection, behind a layer with tanh where the spec has one."""

    def __init__(
        self, spec: HeadSpec, context: BuildContext, hidden: int, scale: float = 1.0, cap: float | None = None
    ) -> None:
        """`scale`, `cap`: of the model's logits, which a projection of its output head makes."""
        super().__init__()
        self.dense = Projection(context, hidden, hidden, spec.bias) if spec.dense else None
        self.output = Projection(context, hidden, spec.num_rows, spec.bias)
        self.makes_logits, self.differs = bool(spec.tokens), spec.differs
        self.scale, self.cap = scale, cap

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """float32 [S, hidden] -> float32 [S, labels]"""
        if self.dense is not None:
            pooled = self.dense(pooled).tanh()
        out: torch.Tensor = self.output(pooled)
        if self.makes_logits:
            out = out * self.scale
            out = out if self.cap is None else self.cap * torch.tanh(out / self.cap)
        return out[:, 1:] - out[:, :1] if self.differs else out
