"""Makes the quantized checkpoints beside it, with the formats' own tools, and the digests of what these read in them.

    python tests/worker/quant/checkpoints/make.py

Run once in an environment of llmcompressor 0.14.0.1, compressed-tensors 0.19.0, transformers 5.17.0 and accelerate.
`dequantized.json` has the SHA-256 and the dtype of every weight as the tool dequantizes it.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    PreTrainedTokenizerFast,
)
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

HERE = Path(__file__).parent
LARGEST = 448.0
NARROW = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WIDE = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
}
"""Two ranks share whole blocks of 128; the one head of keys and values is on both."""
SINGLE = WIDE | {"intermediate_size": 128, "num_attention_heads": 1}
SOME = ["lm_head", "re:.*layers\\.1\\.self_attn\\.k_proj", "model.layers.1.mlp.down_proj"]
"""Layers that stay as they are, one of them between two that do not."""


def model_of(sizes: dict, dtype: torch.dtype) -> torch.nn.Module:
    config = AutoConfig.for_model(
        "llama",
        **sizes,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.15,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model.to(dtype)


def samples() -> DataLoader:
    """Two prompts, for the scales of what is quantized statically."""
    ids = torch.randint(0, 96, (2, 64), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
    return DataLoader(rows, batch_size=1)


def by_llmcompressor(name: str, modifier: QuantizationModifier, dtype: torch.dtype, sizes: dict = NARROW) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        model_of(sizes, dtype).save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<unk>": 0})))
        oneshot(model=model, tokenizer=tokenizer, recipe=modifier, dataset=samples(), num_calibration_samples=2)
        model.save_pretrained(Path(folder) / "out", save_compressed=True)
        keep(name, Path(folder) / "out")


def by_transformers(name: str, config: dict, dtype: torch.dtype, sizes: dict = NARROW) -> None:
    """Its own quantization and file, though not by `save_pretrained`, which wants a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        model_of(sizes, dtype).save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        skipped = config.get("modules_to_not_convert") or []
        for tensor in [one for one in tensors if one.endswith("_proj.weight")]:
            module = tensor.removesuffix(".weight")
            if module not in skipped:
                tensors |= quantized(module, tensors[tensor], config)
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}, indent=1) + "\n")
        keep(name, Path(folder))


class Settings:
    """As much of transformers' quantizer as its operations read."""

    def __init__(self, **fields) -> None:
        self.quantization_config = FineGrainedFP8Config(**fields)


def quantized(module: str, weight: torch.Tensor, config: dict) -> dict[str, torch.Tensor]:
    if config["quant_method"] == "fbgemm_fp8":  # its own operation is for GPUs: a scale for each output
        scale = (weight.float().abs().amax(1, keepdim=True) / LARGEST).clamp(min=1e-12)
        return {f"{module}.weight": (weight.float() / scale).to(torch.float8_e4m3fn), f"{module}.weight_scale": scale}
    settings = {name: config[name] for name in ("weight_block_size", "scale_fmt") if name in config}
    operation = Fp8Quantize(Settings(**{"weight_block_size": None, **settings}))
    made = operation.convert({f"{module}.weight": weight.float()})
    if "weight_block_size" not in config:
        made[f"{module}.weight_scale"] = made.pop(f"{module}.weight_scale_inv").reshape(())
    if config["activation_scheme"] == "static":
        made[f"{module}.input_scale"] = torch.tensor(0.01 + len(module) / 1000)
    return made


MADE: list[str] = []


def keep(name: str, folder: Path) -> None:
    MADE.append(name)
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(folder / file, HERE / name / file)


def dequantized(name: str) -> dict[str, tuple[str, str]]:
    """Weight -> digest of its bytes, and its dtype, as transformers loads it dequantized."""
    config = json.loads((HERE / name / "config.json").read_text())["quantization_config"]
    if config["quant_method"] == "compressed-tensors":
        return digest(of_transformers(name))
    stored, operation = load_file(HERE / name / "model.safetensors"), Fp8Dequantize(None)
    scales = {one.rpartition(".")[0]: value for one, value in stored.items() if ".weight_scale" in one}
    return digest(
        {
            f"{one}.weight": operation._dequantize_one(
                stored[f"{one}.weight"], scale.reshape(1, 1) if not scale.dim() else scale, torch.float32
            )
            for one, scale in scales.items()
        }
    )


def of_transformers(name: str) -> dict[str, torch.Tensor]:
    """Every weight as transformers loads it dequantized."""
    model = AutoModelForCausalLM.from_pretrained(
        HERE / name, quantization_config=CompressedTensorsConfig(dequantize=True), dtype="auto"
    )
    return {one: value for one, value in model.state_dict().items() if one.endswith("_proj.weight")}


def digest(weights: dict[str, torch.Tensor]) -> dict[str, tuple[str, str]]:
    return {
        one: (hashlib.sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest(), str(value.dtype))
        for one, value in sorted(weights.items())
    }


def preset(scheme: str, **options) -> QuantizationModifier:
    return QuantizationModifier(targets="Linear", scheme=scheme, **options)


def int8_of_tensors() -> QuantizationModifier:
    weights = QuantizationArgs(num_bits=8, type="int", strategy="tensor", symmetric=True)
    inputs = preset_name_to_scheme("W8A8", ["Linear"]).input_activations
    group = QuantizationScheme(targets=["re:.*proj"], weights=weights, input_activations=inputs)
    return QuantizationModifier(config_groups={"group_0": group}, ignore=["lm_head"])


def main() -> None:
    kv = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
    by_llmcompressor("ct_fp8", preset("FP8", ignore=SOME), torch.bfloat16)
    by_llmcompressor("ct_fp8_dynamic", preset("FP8_DYNAMIC", ignore=SOME), torch.float32)
    by_llmcompressor("ct_fp8_block", preset("FP8_BLOCK", ignore=["lm_head"]), torch.bfloat16, SINGLE)
    by_llmcompressor("ct_w8a8", preset("W8A8", ignore=SOME), torch.bfloat16)
    by_llmcompressor("ct_w8a8_tensor", int8_of_tensors(), torch.float32)
    by_llmcompressor("ct_kv", QuantizationModifier(kv_cache_scheme=kv), torch.bfloat16)
    dynamic = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    skipped = ["model.layers.0.self_attn.v_proj", "model.layers.1.mlp.up_proj"]
    by_transformers("fp8_dynamic", dynamic | {"modules_to_not_convert": skipped}, torch.float32)
    by_transformers("fp8_static", dynamic | {"activation_scheme": "static"}, torch.float32)
    blocks = dynamic | {"weight_block_size": [128, 128]}
    by_transformers("fp8_blocks", blocks, torch.bfloat16, WIDE)
    by_transformers("fp8_ue8m0", blocks | {"scale_fmt": "ue8m0"}, torch.bfloat16, SINGLE)
    by_transformers("fbgemm", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 3.0}, torch.float32)
    path = HERE / "dequantized.json"
    made = {name: dequantized(name) for name in MADE}
    path.write_text(json.dumps(dict(sorted((json.loads(path.read_text()) | made).items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
