"""SigLIP's vision tower (Zhai et al., 2023) as checkpoints name and describe it, which several models have."""

from typing import Any, Final

from quire.worker.fields import MAX_LAYERS, Config, integer, number, shown, ungated_activation
from quire.worker.specs.vision_spec import CHANNELS
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

TENSOR: Final = r"\.(?P<tensor>weight|bias)"
_TOWER: Final = r"(model\.)?vision_tower\.(vision_model\.)?"
_IN_BLOCK: Final = {
    "layer_norm1": "attention_norm",
    r"self_attn\.(?P<part>[qkv])_proj": "qkv.{part}",
    r"self_attn\.out_proj": "output",
    "layer_norm2": "mlp_norm",
    r"mlp\.fc1": "mlp.up",
    r"mlp\.fc2": "mlp.down",
}


def siglip_rules(tower: str) -> tuple[NameRule, ...]:
    """Rules for SigLIP's patches and blocks; `tower`: pattern of what stands before the tower's tensors."""
    block = rf"{tower}encoder\.layers\.(?P<n>\d+)\."
    return (
        NameRule(rf"{tower}embeddings\.patch_embedding{TENSOR}", "vision.patches.{tensor}"),
        NameRule(rf"{tower}embeddings\.position_embedding\.weight", "vision.positions.weight"),
        *(NameRule(block + name + TENSOR, f"vision.blocks.{{n}}.{own}.{{tensor}}") for name, own in _IN_BLOCK.items()),
    )


SIGLIP_RULES: Final = siglip_rules(_TOWER)
LAST_NORM: Final = rf"{_TOWER}post_layernorm{TENSOR}"
SIGLIP_IGNORED: Final = (rf"{_TOWER}head\..+", rf"{_TOWER}embeddings\.position_ids")
"""Rules for SigLIP's patches and blocks, the pattern of its last norm, and those of what makes no rows."""


def read_siglip(
    tower: Config,
    kind: str = "siglip_vision_model",
    activation: str = "gelu_pytorch_tanh",
    norm_eps: float = 1e-6,
) -> dict[str, Any]:
    """Fields that specs of such a tower have in common; or of one of another kind with the same keys."""
    if (stated := tower.get("model_type", kind)) != kind:
        raise ModelError("model_type", f"{shown(stated)} is not supported; supported: {kind}")
    if (channels := integer(tower, "num_channels", CHANNELS)) != CHANNELS:
        raise ModelError("num_channels", f"images have {CHANNELS}: red, green and blue, got {channels}")
    hidden, num_heads = integer(tower, "hidden_size"), integer(tower, "num_attention_heads")
    if hidden % num_heads:
        raise ModelError("num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}")
    patch, pixels = integer(tower, "patch_size"), integer(tower, "image_size")
    if pixels < patch:
        raise ModelError("image_size", f"must hold a patch of {patch} pixels, got {pixels}")
    return {
        "num_blocks": integer(tower, "num_hidden_layers", most=MAX_LAYERS),
        "hidden_size": hidden,
        "intermediate_size": integer(tower, "intermediate_size"),
        "num_heads": num_heads,
        "patch_size": patch,
        "side": pixels // patch,
        "tile_pixels": pixels,
        "activation": ungated_activation(tower, activation),
        "norm_eps": number(tower, "layer_norm_eps", norm_eps),
    }
