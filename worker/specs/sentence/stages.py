"""The stages behind the pooling of an embedding model: matrices, norms, and vectors of length 1 between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from quire.worker.fields import MAX_WIDTH, flag, integer, read_json, shown
from quire.worker.weights.parts import ModelError

StageKind = Literal["dense", "layer_norm", "normalize"]
KINDS: Final[Mapping[str, StageKind]] = {"Dense": "dense", "LayerNorm": "layer_norm", "Normalize": "normalize"}
ACTIVATIONS: Final = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "Mish")
"""Names of torch's modules, each as it is made without arguments."""
VECTOR: Final = "sentence_embedding"
"""The value that flows from one stage to the next; others are of each token, or of other kinds of model."""
SCORES: Final = "scores"
"""The value that the last stage of a cross-encoder makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """A stage: `activation(W x + b)`, perhaps plus the input, a LayerNorm, or a division by the length."""

    kind: StageKind
    folder: str = ""
    """Folder of its weights beside config.json; a division has none."""
    inputs: int = 0
    outputs: int = 0
    """Widths of the vector before and behind it."""
    bias: bool = True
    activation: str = "Identity"
    residual: bool = False
    """The input is added to the output, by a matrix of its own where the widths differ."""

    @property
    def num_elements(self) -> int:
        """Parameters of the stage."""
        if self.kind == "layer_norm":
            return 2 * self.inputs
        matrices = 2 if self.residual and self.inputs != self.outputs else 1
        return self.outputs * (matrices * self.inputs + self.bias) if self.kind == "dense" else 0


def read_stage(model_dir: Path, name: str, folder: str, width: int, output: str = VECTOR) -> StageSpec:
    """The stage of this name for vectors of `width`. `output`: the value that it makes. Raises ModelError."""
    path = model_dir / folder / "config.json"
    config = read_json(path) if path.exists() and folder else {}
    for field, wanted in (("module_input_name", VECTOR), ("module_output_name", output)):
        if (stated := config.get(field) or VECTOR) != wanted:
            message = f"{folder} has {shown(stated)}, and {name} is supported here for {wanted} alone"
            raise ModelError(field, f"{message}; vectors of tokens are not served")
    kind = KINDS[name]
    if kind == "normalize":
        return StageSpec(kind=kind, inputs=width, outputs=width)
    if not folder or not path.exists():
        raise ModelError("config.json", f"{path} is missing, though modules.json names {name}")
    sizes = ("in_features", "out_features") if kind == "dense" else ("dimension", "dimension")
    inputs, outputs = (integer(config, field, most=MAX_WIDTH) for field in sizes)
    if inputs != width:
        raise ModelError(sizes[0], f"{folder} takes vectors of {inputs} numbers, and those before it have {width}")
    if kind == "layer_norm":
        return StageSpec(kind=kind, folder=folder, inputs=inputs, outputs=outputs)
    return StageSpec(
        kind=kind,
        folder=folder,
        inputs=inputs,
        outputs=outputs,
        bias=flag(config, "bias", True),
        activation=_activation(config.get("activation_function", "torch.nn.modules.activation.Tanh")),
        residual=flag(config, "use_residual", False),
    )


def _activation(stated: Any) -> str:
    name = str(stated).rpartition(".")[2]
    if not str(stated).startswith("torch.") or name not in ACTIVATIONS:
        raise ModelError(
            "activation_function", f"{shown(stated)} is not supported; supported of torch.nn: {', '.join(ACTIVATIONS)}"
        )
    return name
