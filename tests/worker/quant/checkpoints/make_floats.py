"""Makes the checkpoints of 4-bit floats, with the formats' own tools, and the digests of what these read in them.

    python tests/worker/quant/checkpoints/make_floats.py

Run once in an environment of compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, torch 2.13.0, transformers 5.17.0,
accelerate, datasets and requests.
"""

import copy
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from make_modelopt import HERE, NARROW, export
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, NVFP4QTensor
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig

SIZES = NARROW | {"hidden_size": 64, "intermediate_size": 128}
"""Two ranks share whole groups, and whole steps of 32 inputs."""
OF_MODELOPT = ("modelopt_mixed", "modelopt_mxfp4", "modelopt_nvfp4", "modelopt_nvfp4a16")
SOME = ["lm_head", "re:.*layers\\.1\\.self_attn\\.k_proj", "model.layers.1.mlp.down_proj"]
"""Layers that stay as they are, one of them between two that do not."""


def by_compressed_tensors(name: str, preset: str, ignore: list[str], dtype: torch.dtype = torch.bfloat16) -> None:
    config = AutoConfig.for_model(
        "llama", **SIZES, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0,
        initializer_range=0.15, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    groups = {"group_0": preset_name_to_scheme(preset, ["Linear"])}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=ignore))
    for module in model.modules():
        if (scheme := getattr(module, "quantization_scheme", None)) is not None:
            calibrate(module, scheme)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        compressor.update_config(folder)
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(Path(folder, file), HERE / name)


def calibrate(module: torch.nn.Module, scheme) -> None:
    """Scales of the nearest, by the library's own functions."""
    args = scheme.weights
    grouped = module.weight.detach().unflatten(1, (-1, args.group_size))
    least, largest = grouped.amin(2), grouped.amax(2)
    whole = None
    if args.strategy == "tensor_group":
        whole = generate_gparam(least.min(), largest.max())
        module.weight_global_scale.data.copy_(whole)
        if scheme.input_activations is not None:
            module.input_global_scale.data.fill_(100.0)
    module.weight_scale.data.copy_(calculate_qparams(least, largest, args, whole)[0])


def of_transformers(name: str) -> dict[str, torch.Tensor]:
    """Every weight as transformers loads it dequantized, which is by compressed-tensors."""
    model = AutoModelForCausalLM.from_pretrained(
        HERE / name, quantization_config=CompressedTensorsConfig(dequantize=True), dtype="auto"
    )
    return {one: value for one, value in model.state_dict().items() if one.endswith("_proj.weight")}


def of_modelopt(name: str) -> dict[str, torch.Tensor]:
    """Every weight as ModelOpt dequantizes it."""
    stored, found = load_file(HERE / name / "model.safetensors"), {}
    for tensor in [one for one in stored if one.endswith("_proj.weight")]:
        weight, scale = stored[tensor], stored.get(f"{tensor}_scale")
        if weight.dtype == torch.uint8:
            shape, double = (weight.shape[0], 2 * weight.shape[1]), stored.get(f"{tensor}_scale_2")
            if double is None:
                held = MXFP4QTensor(shape, torch.float32, weight)
                weight = held.dequantize(torch.float32, scale=scale, block_sizes={-1: 32})
            else:
                held = NVFP4QTensor(shape, torch.float32, weight)
                weight = held.dequantize(torch.float32, scale=scale, double_scale=double, block_sizes={-1: 16})
        elif scale is not None:
            weight = FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
        found[tensor] = weight
    return found


def digest(weights: dict[str, torch.Tensor]) -> dict[str, tuple[str, str]]:
    """Zeros are without a sign in it: ModelOpt has none, compressed-tensors has."""
    return {
        one: (hashlib.sha256((value + 0.0).view(torch.uint8).numpy().tobytes()).hexdigest(), str(value.dtype))
        for one, value in sorted(weights.items())
    }


def settings(base: dict, *others: dict) -> dict:
    made = copy.deepcopy(base)
    made["quant_cfg"] += others
    return made


def main() -> None:
    head = ["lm_head"]
    by_compressed_tensors("ct_nvfp4", "NVFP4", SOME)
    by_compressed_tensors("ct_nvfp4a16", "NVFP4A16", head, torch.float32)
    by_compressed_tensors("ct_mxfp4", "MXFP4", head)
    by_compressed_tensors("ct_mxfp4a16", "MXFP4A16", SOME)
    skipped = [{"enable": False, "quantizer_name": one} for one in ("*layers.1.self_attn.k_proj*", "*layers.1.mlp*")]
    export("modelopt_nvfp4", settings(mtq.NVFP4_DEFAULT_CFG, *mtq.FP8_KV_CFG["quant_cfg"], *skipped), SIZES)
    export("modelopt_mxfp4", settings(mtq.MXFP4_DEFAULT_CFG, *skipped), SIZES)
    export("modelopt_nvfp4a16", mtq.W4A16_NVFP4_CFG, SIZES, keeps_config=False)
    eight = {"num_bits": (4, 3), "axis": None}
    attention = [{"quantizer_name": f"*self_attn*{one}_quantizer", "cfg": eight} for one in ("weight", "input")]
    export("modelopt_mixed", settings(mtq.NVFP4_DEFAULT_CFG, *attention), SIZES)
    made = {one.name: digest(of_transformers(one.name)) for one in sorted(HERE.glob("ct_*fp4*"))}
    made |= {one: digest(of_modelopt(one)) for one in OF_MODELOPT}
    path = HERE / "dequantized.json"
    path.write_text(json.dumps(dict(sorted((json.loads(path.read_text()) | made).items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
