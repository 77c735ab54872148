"""Tiny models of experts in the layouts of quantized checkpoints, and the dense ones that these mean."""

import json
import re
import shutil
from functools import partial

import torch
from safetensors.torch import load_file, save_file

from quire.worker.quant.form import Groups
from quire.worker.quant.groups import quantized

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
LINEAR = re.compile(
    r".+(self_attn\.[qkvo]_proj|(experts\.\d+|shared_experts?)\.\w+|(mlp|feed_forward)\.(gate|up|down)_proj)\.weight"
)
"""The tensors that the formats' tools quantize: of attention, experts, and dense blocks."""


def words(codes, axis, order=tuple(range(8))):
    """Codes of 4 bits packed along an axis into int32, eight in a word, the first of `order` in its lowest bits."""
    parts = codes.long().unflatten(axis, (-1, 8)).unbind(axis + 1)
    packed = sum(parts[which] << 4 * place for place, which in enumerate(order))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def grouped(weight):
    """Codes [O, I] of 0 to 15, scales float16 [O, G] and zero points [O, G] of groups, and the weight they mean."""
    parts = weight.unflatten(1, (-1, GROUP))
    least, most = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scale = ((most - least) / 15).half()
    zeros = (-least / scale.float()).round().clamp(0, 15)
    codes = ((parts / scale.float()[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return codes.flatten(1), scale, zeros, ((codes - zeros[..., None]) * scale.float()[..., None]).flatten(1)


def by_rows(name, weight):
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.weight_scale": scale}, codes.float() * scale


def by_blocks(name, weight):
    """A scale for each 128 by 128, smaller at the edges."""
    outputs, inputs = weight.shape
    scale = torch.empty(-(-outputs // 128), -(-inputs // 128))
    for row, column in ((r, c) for r in range(scale.shape[0]) for c in range(scale.shape[1])):
        scale[row, column] = weight[row * 128 : row * 128 + 128, column * 128 : column * 128 + 128].abs().max() / 448
    everywhere = scale.repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
    codes = (weight / everywhere).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.weight_scale": scale}, codes.float() * everywhere


def as_published(name, weight):
    """The same with the name of Qwen's and DeepSeek's checkpoints."""
    tensors, meant = by_blocks(name, weight)
    return {
        f"{name}.weight": tensors[f"{name}.weight"],
        f"{name}.weight_scale_inv": tensors[f"{name}.weight_scale"],
    }, meant


def by_compressed_tensors(name, weight):
    """Symmetric codes: a zero point of 8."""
    parts = weight.unflatten(1, (-1, GROUP))
    scale = (parts.abs().amax(2) / 7.5).half()
    codes = (parts / scale.float()[..., None]).round().clamp(-8, 7)
    tensors = {
        f"{name}.weight_packed": words((codes + 8).flatten(1), 1),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": torch.tensor(weight.shape),
    }
    return tensors, (codes * scale.float()[..., None]).flatten(1)


def by_awq(name, weight):
    codes, scale, zeros, meant = grouped(weight)
    tensors = {
        f"{name}.qweight": words(codes.T.contiguous(), 1, AWQ_ORDER),
        f"{name}.qzeros": words(zeros.T.contiguous(), 1, AWQ_ORDER),
        f"{name}.scales": scale.T.contiguous(),
    }
    return tensors, meant


def by_gptq(name, weight):
    """Inputs in an order of their own: gate and up of an expert have the same, as they see the same activations."""
    generator = torch.Generator().manual_seed(weight.shape[1])
    order = torch.randperm(weight.shape[1], generator=generator)
    codes, scale, zeros, meant = grouped(weight[:, order])
    back = order.argsort()
    tensors = {
        f"{name}.qweight": words(codes[:, back].T.contiguous(), 0),
        f"{name}.qzeros": words(zeros.T.contiguous(), 1),
        f"{name}.scales": scale.T.contiguous(),
        f"{name}.g_idx": (back // GROUP).int(),
    }
    return tensors, meant[:, back]


def by_modelopt(name, weight):
    """Floats of 4 bits in groups of 16, whose scales of 8 bits are multiples of one number."""
    parts = weight.unflatten(1, (-1, 16))
    unit = weight.abs().max() / (6 * 448)
    scale = (parts.abs().amax(2) / 6 / unit).to(torch.float8_e4m3fn)
    wide = scale.float()[..., None] * unit
    codes = ((parts / wide).abs()[..., None] - E2M1).abs().argmin(-1)
    meant = E2M1[codes] * parts.sign() * wide
    codes = (codes + 8 * (parts < 0)).flatten(1)
    tensors = {
        f"{name}.weight": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8),
        f"{name}.weight_scale": scale,
        f"{name}.weight_scale_2": unit,
        f"{name}.input_scale": torch.tensor(0.02),
    }
    return tensors, meant.flatten(1)


def _compressed(stored_as, weights):
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors", "format": stored_as, "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$"],
    }  # fmt: skip


FORMATS = {
    "fp8 rows": (
        by_rows,
        _compressed("float-quantized", {"type": "float", "num_bits": 8, "strategy": "channel"}),
    ),
    "fp8 blocks": (
        by_blocks,
        _compressed(
            "float-quantized", {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}
        ),
    ),
    "int4 groups": (
        by_compressed_tensors,
        _compressed("pack-quantized", {"type": "int", "num_bits": 4, "strategy": "group", "group_size": GROUP}),
    ),
    "awq": (
        by_awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    ),
    "gptq": (
        by_gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "nvfp4": (
        by_modelopt,
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": ["lm_head", "model.layers.*.mlp.gate", "model.layers.*.mlp.shared_expert_gate"],
        },
    ),
}
"""How a matrix is stored, and what config.json says; activations stay as they are."""
PUBLISHED = {
    "fp8": (
        as_published,
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(3))],
        },
    ),
    "fbgemm": (
        by_rows,
        {
            "quant_method": "fbgemm_fp8",
            "activation_scale_ub": 0.5,
            "modules_to_not_convert": ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(3))],
        },
    ),
}
"""Those whose activations are quantized, too, after the second cut them at its bound."""


def by_bytes(blocks):
    """Floats of 4 bits [.., K] of groups of 32 with a power of two: blocks, scales and the numbers that they mean."""
    parts = blocks.unflatten(-1, (-1, 32))
    exponent = (parts.abs().amax(-1) / 6).log2().ceil().clamp(-127, 127)
    scaled = parts / exponent.exp2()[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    meant = E2M1[codes] * scaled.sign() * exponent.exp2()[..., None]
    codes += 8 * (scaled < 0)
    return (
        (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8),
        (exponent + 127).to(torch.uint8),
        meant.flatten(-2),
    )


def pack_folder(source, target, stated, packed):
    """`packed(name, tensor)`: the tensors in its place, and the dense one of the same meaning; None: it stays."""
    tensors = load_file(source / "model.safetensors")
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        found = packed(name, tensor.float())
        stored |= {name: tensor} if found is None else found[0]
        meant[name] = tensor if found is None else found[1].contiguous()
    folders = []
    for kind, held in (("stored", stored), ("meant", meant)):
        folders.append(shutil.copytree(source, target / kind))
        save_file({name: one.contiguous() for name, one in held.items()}, target / kind / "model.safetensors")
    path = folders[0] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": stated}))
    return folders


def pack_matrices(source, target, name):
    """Two folders: a checkpoint in the format of this name, and the dense one that it means."""
    form, stated = {**FORMATS, **PUBLISHED}[name]
    return pack_folder(
        source,
        target,
        stated,
        lambda tensor, weight: form(tensor.removesuffix(".weight"), weight) if LINEAR.fullmatch(tensor) else None,
    )


def in_4_bits(source, target):
    """Two folders: an unquantized checkpoint, and the one that `--quantization int4` makes of it."""

    def rounded(name, tensor):
        is_stacked = tensor.dim() == 3
        if not is_stacked and not LINEAR.fullmatch(name):
            return None
        weight = (tensor.transpose(1, 2) if is_stacked else tensor).contiguous()  # gpt-oss has inputs first
        inputs = weight.shape[-1]
        size = next(size for size in (128, 64, 32) if inputs % size == 0)
        form = Groups(4, size, "zeros", scale="bfloat16", stored=False)
        codes, scale, zeros = (one.float() for one in quantized(weight.flatten(0, -2), form))
        groups = (codes.unflatten(1, (-1, size)) - zeros[..., None]) * scale[..., None]
        meant = groups.view(weight.shape)
        return {name: tensor}, meant.transpose(1, 2) if is_stacked else meant

    return pack_folder(source, target, None, rounded)


def publish_gpt_oss(source, target):
    """Two folders: gpt-oss as it is published, and the dense one that it means."""
    stated = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }

    def packed(name, tensor):
        if not name.endswith(("gate_up_proj", "down_proj")):
            return None
        blocks, scales, meant = by_bytes(tensor.transpose(1, 2))
        return {f"{name}_blocks": blocks, f"{name}_scales": scales}, meant.transpose(1, 2)

    return pack_folder(source, target, stated, packed)


MODELS = {
    "qwen3 moe: 8-bit floats": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
        partial(pack_matrices, name="fp8 rows"),
    ),
    "gpt-oss: as published, in MXFP4": (
        "GptOssForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "hidden_size": 96, "intermediate_size": 64}
        | {"head_dim": 16, "num_hidden_layers": 2, "sliding_window": 11},
        publish_gpt_oss,
    ),
}
"""Models, and what makes their checkpoint and the one that it means."""
