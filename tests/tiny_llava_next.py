"""Tiny random checkpoints of LLaVA-NeXT and LLaVA 1.5 as they are published: with CLIP's tower, or with SigLIP's."""

import json
from dataclasses import dataclass

import tiny_tokenizer
import torch
import transformers
from tiny_onevision import CORPUS, IMAGE, PATCH, PINPOINTS, SIDE, SPECIAL, TILE, VOCABULARY, WIDE

__all__ = ["IMAGE", "PATCH", "PINPOINTS", "SIDE", "TILE"]
TEMPLATE = """\
{% for message in messages %}{{ message['role'] + ': ' }}\
{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}\
{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}\
{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""
"""As published, images stand before texts."""
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": 0,
    "bos_token_id": 0,
    **WIDE,
}
VISION = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": PATCH,
}
MULTIPLIERS = {
    "embedding_multiplier": 1.5,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}


@dataclass(frozen=True)
class Kind:
    """What differs between checkpoints: fields of the sections, of the config, and of the image processor."""

    text: dict
    vision: dict
    outer: dict
    processor: dict


CLIP = {"model_type": "clip_vision_model", "projection_dim": 16}
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
SQUARE = {"height": TILE, "width": TILE}
KINDS = {
    "mistral": Kind({"model_type": "mistral", "sliding_window": None}, CLIP, {}, {"size": {"shortest_edge": TILE}}),
    "vicuna": Kind({"model_type": "llama"}, CLIP, {"vision_feature_layer": -1}, {"size": {"shortest_edge": TILE}}),
    "qwen": Kind({"model_type": "qwen2"}, CLIP, {"vision_feature_layer": [0, 2]}, {"size": {"shortest_edge": TILE}}),
    "granite": Kind(
        {"model_type": "granite", **MULTIPLIERS},
        SIGLIP,
        {"vision_feature_layer": [-5, -3, -2, -1], "vision_feature_select_strategy": "full"},
        {"size": SQUARE, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    ),
}
PROCESSOR = {
    "image_processor_type": "LlavaNextImageProcessor",
    "aspect_ratio_setting": "anyres",
    "do_center_crop": True,
    "do_pad": True,
    "crop_size": SQUARE,
    "image_grid_pinpoints": PINPOINTS,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_llava(folder, kind="vicuna", **others):
    """The same of an older LLaVA, whose images are one tile each."""
    return write_checkpoint(folder, kind, family="Llava", **others)


def write_checkpoint(
    folder, kind="mistral", seed=0, dtype=torch.float32, text=None, vision=None, family="LlavaNext", **outer
):
    """All files of the model; `text`, `vision`, `outer` override fields of its config."""
    made = KINDS[kind]
    tokenizer = write_tokenizer(folder)
    grids = {"image_grid_pinpoints": PINPOINTS} if family == "LlavaNext" else {}
    stated = {"image_token_index": tokenizer.token_to_id(IMAGE), "tie_word_embeddings": False, **grids}
    config = getattr(transformers, f"{family}Config")(
        text_config={**TEXT, **made.text, **(text or {})},
        vision_config={**VISION, **made.vision, **(vision or {})},
        **{**stated, **made.outer, **outer},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "embedding" in name:  # not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.2)
            elif "vision_tower" in name or "projector" in name:
                torch.nn.init.normal_(parameter, std=0.15)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    processor = PROCESSOR | made.processor
    if family == "Llava":
        is_clip = made.vision is CLIP
        left_out = () if is_clip else ("crop_size", "do_center_crop")
        name = "CLIPImageProcessor" if is_clip else "SiglipImageProcessor"
        names = [one for one in processor if one not in (*left_out, "image_grid_pinpoints", "do_pad")]
        processor = {one: processor[one] for one in names} | {"image_processor_type": name}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "processor_config.json").write_text(json.dumps({"patch_size": PATCH}))
    return folder


def write_tokenizer(folder):
    return tiny_tokenizer.write_tokenizer(folder, [*SPECIAL, IMAGE], TEMPLATE, CORPUS, VOCABULARY)


def library_model(folder, dtype=torch.float32):
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, architecture).from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder):
    """The library's processor of texts and images, by the slow path, which is of one piece with Pillow."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    config = json.loads((folder / "config.json").read_text())
    is_clip = config["vision_config"]["model_type"] == CLIP["model_type"]
    of_images = CLIPImageProcessorPil if is_clip else SiglipImageProcessorPil
    kind = transformers.LlavaProcessor
    if config["model_type"] == "llava_next":
        kind, of_images = transformers.LlavaNextProcessor, LlavaNextImageProcessorPil
    return kind(
        image_processor=of_images.from_pretrained(folder),
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        patch_size=PATCH,
        vision_feature_select_strategy="default" if is_clip else "full",
        num_additional_image_tokens=int(is_clip),
    )


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.image_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def inputs(self, messages, images=()):
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return dict(
            self.processor(text=[text], images=list(images) or None, add_special_tokens=False, return_tensors="pt")
        )

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
