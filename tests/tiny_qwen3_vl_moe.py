"""A tiny random Qwen3-VL checkpoint with experts, as transformers writes it and as it is published."""

import tiny_qwen3_vl
from safetensors.torch import load_file, save_file
from tiny_qwen_vl import TinyQwen

TEXT = {
    **tiny_qwen3_vl.TEXT,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
}
FAMILY = TinyQwen("Qwen3VLMoe", tiny_qwen3_vl.PATCH, tiny_qwen3_vl.VISION, TEXT)
write_checkpoint, Reference = FAMILY.write_checkpoint, FAMILY.reference


def publish(folder):
    """Store the experts' matrices with their inputs first."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, path, {"format": "pt"})
