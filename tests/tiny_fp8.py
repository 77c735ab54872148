"""Checkpoints of 8-bit floats as they are published: matrices of the decoder in codes, a scale for each block."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

BLOCK, LARGEST = 128, 448.0
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
WHOLE_BLOCKS = {
    "text": {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1,
             "head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                  "mrope_section": [24, 20, 20], "mrope_interleaved": True}},
    "vision": {"out_hidden_size": 128},
}  # fmt: skip
"""Fields of `tiny_qwen3_vl.write_checkpoint` for matrices of whole blocks."""
OLDER_TEXT = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]},
    "initializer_range": 0.05,  # queries and keys that nothing normalises: wider ones see one token alone
}
BLOCKS_OF_FAMILY = {
    "Qwen2VL": {"text": OLDER_TEXT, "vision": {"hidden_size": 256}},
    "Qwen2_5_VL": {"text": OLDER_TEXT, "vision": {"out_hidden_size": 256}},
    "Qwen3VL": WHOLE_BLOCKS,
}
"""The same of each family of `tiny_qwen_vl`."""


def in_codes(weight):
    """Codes and the scale of each block of a matrix of whole blocks."""
    blocks = weight.view(weight.shape[0] // BLOCK, BLOCK, weight.shape[1] // BLOCK, BLOCK)
    scale = blocks.abs().amax((1, 3)) / LARGEST
    return (blocks / scale[:, None, :, None]).view_as(weight).to(torch.float8_e4m3fn), scale


def dequantized(codes, scale):
    return codes.float() * scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def quantize(folder, names=None, others=()):
    """Put the decoder's matrices in codes; `names` of modules are said to be dense, None: those of the tower.

    `others`: tensors that become a block in codes, too.
    """
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if not of_tower(name) and "_proj.weight" in name] + list(others):
        if name in others:
            tensors[name] = torch.ones(BLOCK, BLOCK)
        tensors[name], tensors[f"{name}_scale_inv"] = in_codes(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    modules = {name.rpartition(".")[0] for name in tensors if of_tower(name)}
    skipped = names or ["lm_head", *sorted(modules)]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": {**FP8, "modules_to_not_convert": skipped}})
    )
    return folder


def of_tower(name):
    return "visual" in name or "vision_tower" in name


def write_dequantized(folder, copy):
    """The checkpoint with the weights that its codes stand for, in another folder."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    del config["quantization_config"]
    (copy / "config.json").write_text(json.dumps(config))
    tensors = load_file(copy / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale_inv")}
    for name, scale in scales.items():
        weight = name.removesuffix("_scale_inv")
        tensors[weight] = dequantized(tensors[weight], scale)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy
