"""A tiny random InternVL checkpoint as it is published: weights, tokenizer, chat template, processor."""

import json

import tiny_tokenizer
import torch
import transformers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
START, IMAGE, END, VIDEO = "<img>", "<IMG_CONTEXT>", "</img>", "<video>"
VOCABULARY = 384
CORPUS = [
    "what do you see in this picture, and what in that one",
    "a quire is a gathering of pages",
    "Frame1: Frame2: ",
]
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '<IMG_CONTEXT>\n' }}
{%- elif part.type == 'video' %}
{{- '<video>\n' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
PATCH, MERGE, SIDE = 8, 2, 4
TILE = PATCH * SIDE
"""Pixels of a tile's side."""
TOKENS = (SIDE // MERGE) ** 2
"""Tokens of a tile."""
# wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
WIDE = {"initializer_range": 0.15}
TEXT = {
    "model_type": "qwen2",
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
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "attention_bias": True,
    "image_size": [TILE, TILE],
    "patch_size": [PATCH, PATCH],
    **WIDE,
}
PROCESSOR = {
    "image_processor_type": "GotOcr2ImageProcessorFast",
    "crop_to_patches": False,
    "min_patches": 1,
    "max_patches": 6,
    "size": {"height": TILE, "width": TILE},
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.7],
}


def write_checkpoint(folder, seed=0, dtype=torch.float32, text=None, vision=None, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config."""
    tokenizer = write_tokenizer(folder)
    config = transformers.InternVLConfig(
        text_config={**TEXT, **(text or {})},
        vision_config={**VISION, **(vision or {})},
        image_token_id=tokenizer.token_to_id(IMAGE),
        image_seq_length=TOKENS,
        **{"tie_word_embeddings": False, **outer},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.InternVLForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "embeddings." in name:  # not the ones and zeros that would hide a mistake
                mean = float("norm" in name and "weight" in name) + 0.6 * ("lambda" in name)
                torch.nn.init.normal_(parameter, mean=mean, std=0.2)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def write_tokenizer(folder):
    images = {"start_image_token": START, "end_image_token": END, "context_image_token": IMAGE, "video_token": VIDEO}
    special = [*SPECIAL, START, IMAGE, END, VIDEO]
    return tiny_tokenizer.write_tokenizer(folder, special, TEMPLATE, CORPUS, VOCABULARY, extra_special_tokens=images)


def library_model(folder, dtype=torch.float32):
    return transformers.InternVLForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder):
    """The library's processor of texts and images, by the slow path, which is of one piece with Pillow."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    class OfImages(transformers.InternVLProcessor):
        """Without the part for videos, for which the library wants torchvision."""

        def check_argument_for_proper_class(self, argument_name, argument):
            pass

    return OfImages(
        image_processor=GotOcr2ImageProcessorPil.from_pretrained(folder),
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        image_seq_length=TOKENS,
    )


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.image_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def inputs(self, messages, images):
        """Token ids [1, T] of a chat, each image written out, and the pixels of all tiles."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.processor(text=[text], images=list(images) or None, return_tensors="pt")

    def watched(self, messages, images, videos):
        """The same with videos, lists of frames: the library's texts, and its images' pixels for each frame."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images, videos, tiles = iter(images), iter(videos), []

        def written(match):
            if match["image"]:
                made = self.processor.image_processor(images=[next(images)], crop_to_patches=True, return_tensors="pt")
                tiles.append(made["pixel_values"])
                return self.processor.replace_image_token(made, 0)
            frames = self.processor.image_processor(images=next(videos), crop_to_patches=False, return_tensors="pt")
            tiles.append(frames["pixel_values"])
            return self.processor.replace_video_token({"pixel_values_videos": frames["pixel_values"][None]}, 0)

        text = self.processor.multimodal_pattern.sub(written, text)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        return {"input_ids": ids, "pixel_values": torch.cat(tiles)}

    @torch.inference_mode()
    def greedy(self, inputs, count):
        """The first tokens behind the inputs."""
        out = self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=torch.ones_like(inputs["input_ids"]),
            pixel_values=inputs.get("pixel_values"),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, inputs["input_ids"].shape[1] :].tolist()
