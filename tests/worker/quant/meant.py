"""What models mean that are loaded from quantized checkpoints: the weights they multiply by, and their tokens."""

import hashlib
import json
from pathlib import Path

import torch

from quire.kernels.linear import linear_groups, linear_int8, pack
from quire.kernels.linear.code_tables import numbers
from quire.kernels.linear.linear_f8 import unpack
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.kernels.linear.linear_group_words import unpack_words
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.quant.f8_blocks import F8BlocksScheme
from quire.worker.quant.f8_rows import F8RowsScheme
from quire.worker.quant.groups import GroupsScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.start import start

GROUPS = (
    "awq", "awq_symmetric", "ct_w4a16", "ct_w4a16_asym", "ct_w8a16", "ct_w8a16_asym",
    "gptq", "gptq_8", "gptq_asym", "gptq_dynamic", "gptq_order", "gptq_order_v2",
)  # fmt: skip
FLOATS = (
    "ct_mxfp4", "ct_mxfp4a16", "ct_nvfp4", "ct_nvfp4a16", "modelopt_mxfp4", "modelopt_nvfp4", "modelopt_nvfp4a16",
)  # fmt: skip
"""Those of 4 bits."""
WITHOUT_SIGNS = ("modelopt_mixed", *FLOATS)
"""Those of whose zeros tools differ in the sign."""
OF_TOOLS = json.loads((Path(__file__).parent / "checkpoints/dequantized.json").read_text())
"""Checkpoint -> weight -> digest of its bits as the format's own tool makes them, and their type."""
PROMPTS = ([5], [17, 3, 90, 41, 41, 2, 60], list(range(1, 24)), [95] * 9)


def meant(layer, scheme, inputs):
    """The weight [outputs, inputs] that a finished layer multiplies by."""
    if isinstance(scheme, Int8Scheme):
        return linear_int8.unpack(layer.packed, len(layer.scale), inputs).float() * layer.scale[:, None]
    if isinstance(scheme, F8RowsScheme):
        return unpack(layer.packed, len(layer.scale), inputs).float() * layer.scale[:, None]
    if isinstance(scheme, F8BlocksScheme):
        outputs = layer.packed.shape[0] * 16
        scale = layer.scale.repeat_interleave(SIDE, 0)[:outputs].repeat_interleave(SIDE, 1)[:, :inputs]
        return unpack(layer.packed, outputs, inputs).float() * scale
    if isinstance(scheme, GroupsScheme):
        return of_groups(layer, scheme.form, inputs)
    return pack.unpack(layer.weight)


def of_groups(layer, form, inputs):
    in_words, unit = "words" in layer._parameters, layer._parameters.get("unit")
    plain = torch.t if in_words else linear_groups.unpack_scale
    stored = [layer.scale] if form.offset == "none" else [layer.scale, layer.offset]
    stored = [plain(one).float() for one in stored]
    if unit is not None:
        units = [unit[:, None]] if unit.dim() == 1 else [plain(one) for one in unit]
        stored = [linear_groups.scaled(*pair) for pair in zip(stored, units, strict=True)]
    scale, *offset = (one[..., None] for one in stored)
    places = len(layer.columns) if form.order else inputs
    if in_words:
        codes = unpack_words(layer.words, form.held_bits, places).view(*stored[0].shape, -1)
    else:
        codes = linear_groups.unpack(layer.packed, form.bits, len(scale), places).view(*stored[0].shape, -1)
    if form.table:
        weight = (numbers(codes, form.table) * scale).flatten(1)
    elif form.offset == "minima":
        weight = (codes.float() * scale - offset[0]).flatten(1)
    else:
        zeros = offset[0] if offset else 2 ** (form.held_bits - 1)
        weight = ((codes.float() - zeros) * scale).flatten(1)
    if not form.order:
        return weight
    ordered = weight.new_full((len(scale), inputs), torch.nan)
    ordered[:, layer.columns[layer.columns >= 0]] = weight[:, layer.columns >= 0]
    assert not weight.isnan().any()
    return ordered


def parts_of(layer, inputs, lengths):
    """Part -> its weight, whether the parts share a product or not."""
    if set(lengths) <= set(layer._modules):
        return {name: meant(part, part.scheme, inputs) for name, part in layer._modules.items()}
    return dict(zip(lengths, meant(layer, layer.scheme, inputs).split(list(lengths.values())), strict=True))


def weights_of(model):
    """Name in the checkpoint -> the weight, of one rank."""
    found, hidden = {}, model.spec.hidden_size
    for number, block in enumerate(model.blocks):
        qkv, output, mlp = block.attention.qkv, block.attention.output, block.mlp
        queries, keys = qkv.num_heads * qkv.head_dim, qkv.num_kv_heads * qkv.head_dim
        inner = model.spec.layers[number].feed_forward.intermediate_size // model.embedding.group.size
        heads = parts_of(qkv, hidden, {"q": queries, "k": keys, "v": keys})
        wide = parts_of(mlp.gate_up, hidden, {"gate": inner, "up": inner})
        named = {f"self_attn.{name}": one for name, one in heads.items()}
        named |= {f"mlp.{name}": one for name, one in wide.items()}
        named |= {
            "self_attn.o": meant(output, output.scheme, queries),
            "mlp.down": meant(mlp.down, mlp.down.scheme, inner),
        }
        found |= {f"model.layers.{number}.{name}_proj.weight": one for name, one in named.items()}
    if not model.spec.tied_embeddings:
        found["lm_head.weight"] = meant(model.head, model.head.scheme, hidden)
    return found


def not_of_tool(found, name):
    """Weights of a checkpoint that are not bit for bit those of the format's own tool."""
    wrong = []
    for weight, (digest, dtype) in OF_TOOLS[name].items():
        own = found[weight].to(getattr(torch, dtype.removeprefix("torch."))).contiguous()
        if name in WITHOUT_SIGNS:
            own = own + 0.0
        if hashlib.sha256(own.view(torch.uint8).cpu().numpy().tobytes()).hexdigest() != digest:
            wrong.append(weight)
    return wrong


def together(ranks, num_kv_heads):
    """The weights of the whole model out of those of its ranks."""
    first = ranks[0]
    if len(ranks) == 1:
        return first
    whole = {}
    for name in first:
        axis = 1 if "o_proj" in name or "down_proj" in name else 0
        shared = ("k_proj" in name or "v_proj" in name) and num_kv_heads < len(ranks)
        whole[name] = first[name] if shared else torch.cat([rank[name] for rank in ranks], axis)
    return whole


def greedy(model, prompt, count):
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def engine(folder, drive, **fields):
    config = WorkerConfig(
        model=str(folder), device="cpu", max_num_seqs=4, max_num_batched_tokens=64, block_size=8,
        kv_cache_memory_bytes=4 << 20, num_threads=1, **{"dtype": "float32", **fields},
    )  # fmt: skip
    return start(config, 0, Device("cpu", 0), Groups), lambda started: drive(started.executor, 8)
