"""Tiny random checkpoints of PaliGemma and PaliGemma 2 as they are published: no chat template is among the files."""

import json

import tiny_tokenizer
import torch
import transformers
from tiny_gemma3 import CORPUS, VISION, VOCABULARY, WIDE

BOS, IMAGE = "<bos>", "<image>"
PATCH, SIDE = 4, 12
TOKENS = (SIDE // PATCH) ** 2
"""Tokens of an image: one for each patch."""
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "bos_token_id": 1,
    **WIDE,
}
KINDS = {
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1},
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 24, "sliding_window": 256},
}
PROCESSOR = {
    "image_processor_type": "SiglipImageProcessor",
    "processor_class": "PaliGemmaProcessor",
    "do_convert_rgb": None,
    "image_seq_length": TOKENS,
    "size": {"height": SIDE, "width": SIDE},
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write_checkpoint(folder, kind="gemma", seed=0, dtype=torch.float32, text=None, vision=None, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config."""
    tokenizer = write_tokenizer(folder)
    texts = {**TEXT, **KINDS[kind], **(text or {})}
    stated = {"image_token_index": tokenizer.token_to_id(IMAGE), "projection_dim": texts["hidden_size"]}
    config = transformers.PaliGemmaConfig(
        text_config=texts,
        vision_config={**VISION, "image_size": SIDE, "patch_size": PATCH, **(vision or {})},
        **{**stated, **outer},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.PaliGemmaForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # not the ones and zeros that would hide a mistake
                is_gain = "layer_norm" in name or ("layernorm" in name and "vision_tower" in name)
                torch.nn.init.normal_(parameter, mean=float(is_gain and "weight" in name), std=0.2)
            elif "vision_tower" in name or "projector" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def write_tokenizer(folder):
    special = ["<eos>", BOS, IMAGE]
    made = tiny_tokenizer.write_tokenizer(folder, special, "", CORPUS, VOCABULARY, bos_token=BOS, eos_token="<eos>")
    file = folder / "tokenizer_config.json"
    stated = json.loads(file.read_text())
    stated.pop("chat_template", None)
    file.write_text(json.dumps(stated))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return made


def library_model(folder, dtype=torch.float32):
    return transformers.PaliGemmaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder):
    """The library's processor of texts and images, by the slow path, which is of one piece with Pillow."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    images = SiglipImageProcessorPil.from_pretrained(folder, do_convert_rgb=True)
    images.image_seq_length = TOKENS
    return transformers.PaliGemmaProcessor(images, transformers.PreTrainedTokenizerFast.from_pretrained(folder))


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.row_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def inputs(self, messages, images=()):
        """What the model reads of the one message; of a text alone what the processor would make of it."""
        parts = messages[0]["content"]
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        if not images:
            ids = self.tokenizer(f"{BOS}{text}\n", add_special_tokens=False, return_tensors="pt")["input_ids"]
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        made = dict(self.processor(text=IMAGE * len(images) + text, images=[list(images)], return_tensors="pt"))
        del made["labels"]
        return made

    @torch.inference_mode()
    def greedy(self, inputs, count):
        """The first tokens behind the inputs."""
        out = self.model.generate(
            **inputs,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, inputs["input_ids"].shape[1] :].tolist()
