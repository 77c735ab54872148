"""A tiny random Mistral 3 checkpoint as it is published: weights, tokenizer, chat template, processors."""

import json
import sys
from types import SimpleNamespace

import tiny_tokenizer
import torch
import transformers

SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
VOCABULARY = 384
CORPUS = ["what do you see in this picture, and what in that one", "a quire is a gathering of pages"]
TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '[INST]' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type in ['image', 'image_url'] %}
{{- '[IMG]' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '[/INST]' }}
{%- elif message.role == 'system' %}
{{- message.content }}
{%- else %}
{{- message.content + eos_token }}
{%- endif %}
{%- endfor %}
"""
PATCH, MERGE = 8, 2
FACTOR = PATCH * MERGE
"""Pixels of the side of a square for which one token stands."""
LONGEST = 10 * FACTOR
TEXT = {
    "model_type": "mistral",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "sliding_window": None,
    # wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
    "initializer_range": 0.15,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
VISION = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": PATCH,
    "image_size": LONGEST,
    "hidden_act": "silu",
    "initializer_range": 0.15,
}
PROCESSOR = {
    "image_processor_type": "PixtralImageProcessor",
    "size": {"longest_edge": LONGEST},
    "patch_size": {"height": PATCH, "width": PATCH},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_checkpoint(folder, seed=0, dtype=torch.float32, text=None, vision=None, **fields):
    """All files of the model; `text`, `vision`, `fields` override fields of its config."""
    tokenizer = write_tokenizer(folder)
    config = transformers.Mistral3Config(
        text_config={**TEXT, **(text or {})},
        vision_config={**VISION, **(vision or {})},
        image_token_index=tokenizer.token_to_id(IMAGE),
        **{"tie_word_embeddings": False, **fields},
    )
    return write_model(folder, transformers.Mistral3ForConditionalGeneration, config, seed, dtype)


def write_llava(folder, seed=0, dtype=torch.float32, text=None, vision=None, **fields):
    """The same as Pixtral 12B lies on the hub: a row for each patch."""
    tokenizer = write_tokenizer(folder)
    config = transformers.LlavaConfig(
        text_config={**TEXT, **(text or {})},
        vision_config={**VISION, **(vision or {})},
        image_token_index=tokenizer.token_to_id(IMAGE),
        **{"vision_feature_layer": -1, "vision_feature_select_strategy": "full", **fields},
    )
    return write_model(folder, transformers.LlavaForConditionalGeneration, config, seed, dtype)


def write_model(folder, kind, config, seed, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                is_gain = "norm" in name or "ln_pre" in name
                torch.nn.init.normal_(parameter, mean=float(is_gain), std=0.2)
    model.generation_config.eos_token_id = 2
    model.to(dtype).save_pretrained(folder)
    merge = getattr(config, "spatial_merge_size", 1)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps(processor_of(config.vision_config.patch_size, merge)))
    return folder


def processor_of(patch, merge):
    """The settings of the processor of text and images."""
    names = {"image_token": IMAGE, "image_break_token": BREAK, "image_end_token": END}
    return {"processor_class": "PixtralProcessor", "patch_size": patch, "spatial_merge_size": merge, **names}


def write_tokenizer(folder):
    special, ends = [*SPECIAL, IMAGE, BREAK, END], {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2]}
    return tiny_tokenizer.write_tokenizer(folder, special, TEMPLATE, CORPUS, VOCABULARY, **ends)


def library_processor():
    """transformers' processor of text and images, whose module wants a library for images that it does not use."""
    from transformers.models.pixtral import image_processing_pil_pixtral as of_pillow

    sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", of_pillow)
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    return PixtralProcessor


class Reference:
    """What transformers makes of a checkpoint: its Pillow processor, its text, its greedy tokens."""

    def __init__(self, folder):
        from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

        self._folder = folder
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.processor = PixtralImageProcessorPil.from_pretrained(folder)
        self.settings = json.loads((folder / "processor_config.json").read_text())
        self.factor = self.settings["patch_size"] * self.settings["spatial_merge_size"]
        self.image_id, self.break_id, self.end_id = self.tokenizer.convert_tokens_to_ids([IMAGE, BREAK, END])

    def prompt(self, messages, images):
        """Token ids of a chat, each image's placeholder replaced as the library's processor does, and the images'
        grids (1, rows, columns) of patches."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        sizes = self.pixels(images)["image_sizes"].tolist() if images else []
        pieces = text.split(IMAGE)
        assert len(pieces) == len(images) + 1
        replace, settings = library_processor().replace_image_token, SimpleNamespace(**self.settings)
        runs = [replace(settings, {"image_sizes": sizes}, number) for number in range(len(sizes))]
        whole = "".join(piece + run for piece, run in zip(pieces, [*runs, ""], strict=True))
        patch = self.settings["patch_size"]
        grids = [(1, height // patch, width // patch) for height, width in sizes]
        return self.tokenizer(whole, add_special_tokens=False)["input_ids"], grids

    def pixels(self, images):
        return self.processor(images=images, patch_size=self.factor, return_tensors="pt")

    def resized(self, image):
        """uint8 [height, width, 3]: what the processor normalises."""
        import numpy as np
        from PIL import Image

        height, width = self.pixels([image])["image_sizes"][0].tolist()
        return np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))

    @torch.inference_mode()
    def greedy(self, ids, images, count):
        """The first tokens after these ids."""
        model = transformers.AutoModelForImageTextToText.from_pretrained(self._folder, dtype=torch.float32).eval()
        given = torch.tensor([ids])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            **(dict(self.pixels(images)) if images else {}),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, len(ids) :].tolist()
