"""A tiny random LLaVA-OneVision checkpoint as it is published: weights, tokenizer, chat template, processor."""

import json
import re

import tiny_tokenizer
import torch
import transformers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
IMAGE, VIDEO = "<image>", "<video>"
VOCABULARY = 384
CORPUS = [
    "what do you see in this picture, and what in that one",
    "a quire is a gathering of pages",
]
TEMPLATE = """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}\
{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}\
{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}\
{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\\n' + content['text'] }}\
{% endfor %}{{'<|im_end|>'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""As published, images and videos stand before texts."""
PATCH, TILE = 8, 28
"""Pixels of the sides of a patch, and of a tile, whose last four nobody reads."""
SIDE = TILE // PATCH
"""Patches of a tile's side."""
PINPOINTS = [[TILE * rows, TILE * columns] for rows in range(1, 5) for columns in range(1, 5)]
ASPECT = "anyres_max_5"
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
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": PATCH,
    "vision_use_head": False,
}
PROCESSOR = {
    "image_processor_type": "LlavaOnevisionImageProcessor",
    "do_pad": True,
    "image_grid_pinpoints": PINPOINTS,
    "size": {"height": TILE, "width": TILE},
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.7],
}


def write_checkpoint(folder, seed=0, dtype=torch.float32, text=None, vision=None, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config."""
    tokenizer = write_tokenizer(folder)
    stated = {
        "image_token_index": tokenizer.token_to_id(IMAGE),
        "video_token_index": tokenizer.token_to_id(VIDEO),
        "image_grid_pinpoints": PINPOINTS,
        "vision_aspect_ratio": ASPECT,
        "tie_word_embeddings": False,
    }
    config = transformers.LlavaOnevisionConfig(
        text_config={**TEXT, **(text or {})}, vision_config={**VISION, **(vision or {})}, **{**stated, **outer}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.LlavaOnevisionForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "embedding" in name:  # not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.2)
            elif "vision_tower" in name or "projector" in name:
                torch.nn.init.normal_(parameter, std=0.15)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    together = {"num_image_tokens": SIDE**2, "vision_feature_select_strategy": "full", "vision_aspect_ratio": ASPECT}
    (folder / "processor_config.json").write_text(json.dumps(together))
    return folder


def write_tokenizer(folder):
    return tiny_tokenizer.write_tokenizer(folder, [*SPECIAL, IMAGE, VIDEO], TEMPLATE, CORPUS, VOCABULARY)


def library_model(folder, dtype=torch.float32):
    return transformers.LlavaOnevisionForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder, **changes):
    """The library's processor of texts and images, by the slow path, which is of one piece with Pillow."""
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )

    class OfImages(transformers.LlavaOnevisionProcessor):
        """Without the part for videos, for which the library wants torchvision."""

        def check_argument_for_proper_class(self, argument_name, argument):
            pass

    return OfImages(
        image_processor=LlavaOnevisionImageProcessorPil.from_pretrained(folder, **changes),
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        num_image_tokens=SIDE**2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=ASPECT,
    )


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.image_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def inputs(self, messages, images=(), videos=()):
        """What the model reads: token ids [1, T] with each image and each video, a list of frames, written out, and
        their pixels. Videos of one chat have equally many frames."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images, frames, found = list(images), [self.frames(one) for one in videos], {}
        if images:
            found = dict(self.processor.image_processor(images=images, return_tensors="pt"))
        if videos:
            found["pixel_values_videos"] = torch.stack(frames)
        order = iter(range(len(images)))
        text = text.replace(VIDEO, "<frames>")
        text = re.sub(IMAGE, lambda _: self.processor.replace_image_token(found, next(order)), text)
        order = iter(range(len(videos)))
        text = re.sub("<frames>", lambda _: self.processor.replace_video_token(found, next(order)), text)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **found}

    def frames(self, video):
        """Pixels [frames, 3, side, side]: each of its pictures as a whole."""
        made = self.processor.image_processor(
            images=list(video), image_grid_pinpoints=[[TILE, TILE]], return_tensors="pt"
        )
        return made["pixel_values"][:, 0]

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
