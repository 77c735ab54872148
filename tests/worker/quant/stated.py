"""Configs and headers of quantized checkpoints, and their plans."""

import copy
import json
from pathlib import Path

from quire.worker.config import WorkerConfig
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.header import ITEM_BYTES

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "dtype": "bfloat16",
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = {**FP8, "weight_block_size": [128, 128]}
F8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
F8_TOKEN = {**F8, "strategy": "token", "dynamic": True}
INT8 = {**F8, "type": "int"}
INT8_TOKEN = {**F8_TOKEN, "type": "int"}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": False}
NVFP4 = {**INT4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MXFP4 = {**INT4, "type": "float", "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def changed(config, path, value):
    """The config with one value in it replaced."""
    config = copy.deepcopy(config)
    *outer, last = path.split(".")
    inner = config
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return config


def compressed(weights=F8, inputs=F8_TOKEN, targets=("Linear",), group=None, **fields):
    """A config of one group."""
    kinds = {"float": "float-quantized", "int": "int-quantized"}
    stated = {"targets": list(targets), "weights": weights, "input_activations": inputs, **(group or {})}
    return {
        "quant_method": "compressed-tensors",
        "format": kinds.get(weights.get("type"), "float-quantized"),
        "config_groups": {"group_0": stated},
        "ignore": ["lm_head"],
        **fields,
    }


def floats(weights):
    """A config of one group of 4-bit floats."""
    return compressed(weights, None, format="nvfp4-pack-quantized" if weights == NVFP4 else "mxfp4-pack-quantized")


def plan(folder: Path, stated, headers=None, **fields):
    """The plan of a folder with this config, and with files if there are headers: {tensor: (dtype, shape)}."""
    (folder / "config.json").write_text(json.dumps({**MODEL, "quantization_config": stated}, default=str))
    if headers is not None:
        write(folder / "model.safetensors", headers)
    return read_plan(WorkerConfig(model=str(folder), **fields), read_spec(folder))


def write(path: Path, headers):
    """A file of zeros with this header."""
    sizes, end, entries = {**ITEM_BYTES}, 0, {}
    for name, (dtype, shape) in headers.items():
        begin, count = end, sizes[dtype]
        for length in shape:
            count *= length
        end = begin + count
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))


SHAPES = {
    **{f"self_attn.{name}": (256, 256) for name in "qkvo"},
    "mlp.gate": (384, 256),
    "mlp.up": (384, 256),
    "mlp.down": (256, 384),
}


def packed_headers(tensors):
    """The tensors of the model, every linear layer of a block packed: `tensors(outputs, inputs)` names those of one."""
    found = {name: one for name, one in headers().items() if "_proj" not in name}
    for n in range(2):
        for name, shape in SHAPES.items():
            module = f"model.layers.{n}.{name}_proj"
            found |= {f"{module}.{tensor}": one for tensor, one in tensors(*shape).items()}
    return found


def of_compressed(o, i, bits=4, size=128, zeros=False):
    held = {
        "weight_packed": ("I32", (o, i * bits // 32)),
        "weight_scale": ("BF16", (o, i // (size or i))),
        "weight_shape": ("I64", (2,)),
    }
    return held | ({"weight_zero_point": ("I32", (o * bits // 32, i // (size or i)))} if zeros else {})


def of_floats(o, i):
    return {
        "weight_packed": ("U8", (o, i // 2)),
        "weight_scale": ("F8_E4M3", (o, i // 16)),
        "weight_global_scale": ("F32", (1,)),
    }


def of_mx(o, i):
    return {"weight_packed": ("U8", (o, i // 2)), "weight_scale": ("U8", (o, i // 32))}


def of_modelopt(o, i):
    return {"weight": ("U8", (o, i // 2)), "weight_scale": ("F8_E4M3", (o, i // 16)), "weight_scale_2": ("F32", ())}


def of_awq(o, i, size=128):
    return {
        "qweight": ("I32", (i, o // 8)),
        "qzeros": ("I32", (i // size, o // 8)),
        "scales": ("F16", (i // size, o)),
    }


def of_gptq(o, i, bits=4, size=128):
    groups = i // (size or i)
    return {
        "qweight": ("I32", (i * bits // 32, o)),
        "qzeros": ("I32", (groups, o * bits // 32)),
        "scales": ("F16", (groups, o)),
    }


def headers(dtype="F8_E4M3", scale=lambda o, i: ("weight_scale", "F32", ()), layers=2, prefix="model."):
    """The tensors of the model, every linear layer of a block quantized."""
    found = {f"{prefix}embed_tokens.weight": ("BF16", (96, 256)), f"{prefix}norm.weight": ("BF16", (256,))}
    found["lm_head.weight"] = ("BF16", (96, 256))
    for n in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}layers.{n}.{norm}.weight"] = ("BF16", (256,))
        for name, shape in SHAPES.items():
            module = f"{prefix}layers.{n}.{name}_proj"
            found[f"{module}.weight"] = (dtype, shape)
            scale_name, kind, size = scale(*shape)
            found[f"{module}.{scale_name}"] = (kind, size)
    return found


def of_rows(o, i):
    return "weight_scale", "BF16", (o, 1)


def of_blocks(o, i):
    return "weight_scale_inv", "BF16", (-(-o // 128), -(-i // 128))


KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
ALONE = {
    "quant_method": "compressed-tensors",
    "format": "dense",
    "config_groups": {},
    "ignore": [],
    "kv_cache_scheme": KV,
}
