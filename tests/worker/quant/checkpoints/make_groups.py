"""Makes the checkpoints of 4- and 8-bit groups, with the formats' own tools, and the digests of their weights.

    python tests/worker/quant/checkpoints/make_groups.py

Run once in the environment of make.py, with auto-round 0.15.1 and gptqmodel 7.7.0.
"""

import json
import tempfile
from pathlib import Path

import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization.config import QuantizeConfig, dynamic_get
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
from llmcompressor.modifiers.quantization import QuantizationModifier
from make import HERE, NARROW, SOME, by_llmcompressor, digest, keep, model_of, of_transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

SIZES = NARROW | {"hidden_size": 64, "intermediate_size": 128}
"""Two ranks share whole groups of 32."""


def by_compressed_tensors(name: str, dtype: torch.dtype, ignore: list[str], **weights) -> None:
    args = QuantizationArgs(type="int", **weights)
    group = QuantizationScheme(targets=["re:.*proj"], weights=args)
    modifier = QuantizationModifier(config_groups={"group_0": group}, ignore=ignore)
    by_llmcompressor(name, modifier, dtype, SIZES)


def by_auto_round(name: str, kind: str, **options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        model_of(SIZES, torch.float16).save_pretrained(source)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<unk>": 0})))
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
        made = AutoRound(model, tokenizer, iters=0, disable_opt_rtn=True, **options)
        made.quantize_and_save(output_dir=str(Path(folder) / "out"), format=kind)
        keep(name, next(Path(folder, "out").rglob("config.json")).parent)


def by_gptqmodel(name: str, config: dict, *, mixed: bool, tied: bool = True) -> None:
    """Layers packed by its own; the groups of inputs are drawn. `mixed`: q, k and v of one layer differ in them."""
    generator = torch.Generator().manual_seed(7)
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(SIZES, torch.float16)
        model.config.tie_word_embeddings = tied
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        if not tied:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
        indices: dict[str, torch.Tensor] = {}
        for tensor in sorted(one for one in tensors if "_proj.weight" in one or one == "lm_head.weight"):
            module = tensor.removesuffix(".weight")
            settings = settings_of(module, config)
            if settings is None:
                continue
            weight = tensors.pop(tensor).float()
            merged = module if mixed and ".1." in module else module.rpartition(".")[0] + str(weight.shape[1])
            if merged not in indices:
                order = torch.randperm(weight.shape[1], generator=generator)
                indices[merged] = (order if config["desc_act"] else order.sort().values) // settings["group_size"]
            tensors |= packed(module, weight, indices[merged].int(), settings)
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}, indent=1) + "\n")
        keep(name, Path(folder))


def settings_of(module: str, config: dict) -> dict | None:
    """As GPTQModel's own `dynamic_get`; None: the module is not quantized."""
    if module == "lm_head" and not config["lm_head"]:
        return None
    changed = dynamic_get(config.get("dynamic"), module)
    return None if changed is False else config | (changed or {})


def linear_of(settings: dict, outputs: int, inputs: int) -> TorchLinear:
    return TorchLinear(
        bits=settings["bits"], group_size=settings["group_size"], sym=settings["sym"], desc_act=settings["desc_act"],
        in_features=inputs, out_features=outputs, bias=False, pack_dtype=torch.int32, register_buffers=True,
    )  # fmt: skip


def packed(module: str, weight: torch.Tensor, index: torch.Tensor, settings: dict) -> dict[str, torch.Tensor]:
    outputs, inputs = weight.shape
    groups, most = inputs // settings["group_size"], 2 ** settings["bits"] - 1
    members = [weight[:, index == group] for group in range(groups)]
    least = torch.stack([one.amin(1).clamp(max=0) for one in members], 1)
    largest = torch.stack([one.amax(1).clamp(min=0) for one in members], 1)
    scale = ((largest - least) / most).half().float()
    zeros = (-least / scale).round().clamp(0, most)
    if settings["sym"]:
        scale = (torch.maximum(largest, -least) * 2 / most).half().float()
        zeros = torch.full_like(scale, (most + 1) // 2)
    else:
        zeros[0, 0] = 0  # version 1 borrows from the code beside it
    linear = torch.nn.Linear(inputs, outputs, bias=False)
    linear.weight.data = weight
    made = linear_of(settings, outputs, inputs)
    made.pack_original(linear, scale, zeros.int(), index)
    if settings["checkpoint_format"] == "gptq":
        convert_gptq_v2_to_v1_format_module(made, QuantizeConfig(bits=settings["bits"]))
    return {f"{module}.{name}": getattr(made, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}


def of_gptqmodel(name: str, config: dict) -> dict[str, torch.Tensor]:
    """Every weight as GPTQModel dequantizes it."""
    stored = load_file(HERE / name / "model.safetensors")
    found = {}
    for tensor in [one for one in stored if one.endswith(".qweight")]:
        module = tensor.removesuffix(".qweight")
        settings = config | {"checkpoint_format": config.get("checkpoint_format") or "gptq"}
        settings = settings_of(module, settings | {"lm_head": config.get("lm_head", False)})
        size = settings["group_size"]
        inputs, outputs = stored[tensor].shape[0] * 32 // settings["bits"], stored[tensor].shape[1]
        layer = linear_of(settings | {"group_size": inputs if size == -1 else size}, outputs, inputs)
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            if f"{module}.{part}" in stored:
                setattr(layer, part, stored[f"{module}.{part}"])
        if settings["checkpoint_format"] == "gptq":
            convert_gptq_v1_to_v2_format_module(layer, settings["bits"], torch.int32)
        layer.post_init()
        found[f"{module}.weight"] = layer.dequantize_weight().T
    return found


def of_auto_round(name: str, config: dict) -> dict[str, torch.Tensor]:
    """Every weight as auto-round, and AutoAWQ, dequantize it."""
    stored = load_file(HERE / name / "model.safetensors")
    modules = [one.removesuffix(".qweight") for one in stored if one.endswith(".qweight")]
    return {
        f"{one}.weight": dequantize_gemm(
            stored[f"{one}.qweight"], stored[f"{one}.qzeros"], stored[f"{one}.scales"], 4, config["group_size"]
        ).T
        for one in modules
    }


READERS = {"awq": of_auto_round, "gptq": of_gptqmodel}


def main() -> None:
    half, wide = torch.float16, torch.bfloat16
    head = ["lm_head"]
    by_compressed_tensors("ct_w4a16", wide, SOME, num_bits=4, strategy="group", group_size=32, symmetric=True)
    by_compressed_tensors("ct_w4a16_asym", half, head, num_bits=4, strategy="group", group_size=32, symmetric=False)
    by_compressed_tensors("ct_w8a16", torch.float32, head, num_bits=8, strategy="channel", symmetric=True)
    by_compressed_tensors("ct_w8a16_asym", wide, SOME, num_bits=8, strategy="channel", symmetric=False)
    by_auto_round("awq", "auto_awq", bits=4, group_size=32, sym=False)
    by_auto_round("awq_symmetric", "auto_awq", bits=4, group_size=64, sym=True)
    by_auto_round("gptq", "auto_gptq", bits=4, group_size=32, sym=True)
    by_auto_round("gptq_asym", "auto_gptq", bits=4, group_size=-1, sym=False)
    by_auto_round("gptq_8", "auto_gptq", bits=8, group_size=32, sym=True)
    first = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True, "lm_head": False,
             "checkpoint_format": "gptq", "pack_dtype": "int32"}  # fmt: skip
    by_gptqmodel("gptq_order", first, mixed=True)
    by_gptqmodel("gptq_order_v2", first | {"checkpoint_format": "gptq_v2", "sym": True}, mixed=False)
    dynamic = {r"-:model\.layers\.1\.self_attn\.k_proj": {}, r"+:.*\.down_proj": {"bits": 8, "group_size": 64}}
    changed = {"desc_act": False, "lm_head": True, "checkpoint_format": "gptq_v2", "dynamic": dynamic}
    by_gptqmodel("gptq_dynamic", first | changed, mixed=False, tied=False)
    path = HERE / "dequantized.json"
    digests = json.loads(path.read_text())
    for folder in sorted(one.parent for one in HERE.glob("*/config.json")):
        config = json.loads((folder / "config.json").read_text())["quantization_config"]
        if config["quant_method"] in READERS:
            digests[folder.name] = digest(READERS[config["quant_method"]](folder.name, config))
        elif config.get("format") == "pack-quantized":
            digests[folder.name] = digest(of_transformers(folder.name))
    path.write_text(json.dumps(dict(sorted(digests.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
