"""Makes the checkpoints of ModelOpt, with NVIDIA's own tool, and the digests of what this reads in them.

    python tests/worker/quant/checkpoints/make_modelopt.py

Run once in an environment of nvidia-modelopt 0.47.0, torch 2.13.0 and transformers 5.17.0.
"""

import copy
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
BLOCK = {0: 128, 1: 128}
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
"""Two ranks share whole blocks of 128; the scale of one block alone is a number, and no array."""
SKIPPED = ("*layers.1.self_attn.k_proj*", "*layers.1.mlp*")
"""A layer beside two that are not skipped, and a whole module."""


def export(name: str, settings: dict, sizes: dict, *, keeps_config: bool = True) -> None:
    """`keeps_config`: else config.json says nothing, as that of the tool's first versions, and the other file all."""
    config = AutoConfig.for_model(
        "llama",
        **sizes,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.15,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    ids = torch.randint(0, 96, (2, 64), generator=torch.Generator().manual_seed(1))
    model = mtq.quantize(model, settings, lambda quantized: [quantized(row[None]) for row in ids])
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        export_hf_checkpoint(model, export_dir=folder)
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
        stated = json.loads(Path(folder, "config.json").read_text())
        if not keeps_config:
            del stated["quantization_config"]
            shutil.copy(Path(folder, "hf_quant_config.json"), HERE / name)
        (HERE / name / "config.json").write_text(json.dumps(stated, indent=1) + "\n")
        shutil.copy(Path(folder, "model.safetensors"), HERE / name)


def dequantized(name: str) -> dict[str, tuple[str, str]]:
    """Weight -> digest of its bytes, and its dtype, as the tool dequantizes it."""
    stored = load_file(HERE / name / "model.safetensors")
    made = {}
    for tensor in sorted(one for one in stored if one.endswith("_proj.weight")):
        weight, scale = stored[tensor], stored.get(f"{tensor}_scale")
        if scale is not None:
            blocks = None
            if scale.dim() == 4 or "blocks" in name:
                scale = scale.reshape([-(-length // 128) for length in weight.shape])
                blocks = BLOCK
            rows = scale[:, None] if scale.dim() == 1 else scale
            held = FP8QTensor(weight.shape, torch.float32, weight)
            weight = held.dequantize(torch.float32, scale=rows, block_sizes=blocks).contiguous()
        data = weight.view(torch.uint8).numpy().tobytes()
        made[tensor] = hashlib.sha256(data).hexdigest(), str(weight.dtype)
    return made


def main() -> None:
    settings = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    settings["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]
    settings["quant_cfg"] += [{"enable": False, "quantizer_name": one} for one in SKIPPED]
    export("modelopt_fp8", settings, NARROW)
    export("modelopt_rows", mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, NARROW, keeps_config=False)
    export("modelopt_blocks", mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG, WIDE)
    path = HERE / "dequantized.json"
    made = {name: dequantized(name) for name in ("modelopt_blocks", "modelopt_fp8", "modelopt_rows")}
    path.write_text(json.dumps(dict(sorted((json.loads(path.read_text()) | made).items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
