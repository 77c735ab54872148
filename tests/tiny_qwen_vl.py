"""Tiny random checkpoints of Qwen-VL families as they are published: weights, tokenizer, template, processor."""

import json
from dataclasses import dataclass, field

import torch
import transformers
from tiny_tokenizer import write_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VOCABULARY = 384
CORPUS = ["what do you see in this picture, and what in that one", "a quire is a gathering of pages"]
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or 'video' in part %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in part %}
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
MERGE = 2
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
    # wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
    "initializer_range": 0.15,
    "eos_token_id": 0,
    "bos_token_id": 0,
}


@dataclass(frozen=True)
class TinyQwen:
    """One family: its name in the library, and what its tiny config states."""

    name: str
    patch: int
    vision: dict
    text: dict = field(default_factory=lambda: TEXT)
    image: str = IMAGE
    video: str = VIDEO
    special: tuple = tuple(SPECIAL)
    """The last two begin and end an image."""
    template: str = TEMPLATE
    processor_type: str = "Qwen2VLImageProcessor"

    @property
    def unit(self):
        """Pixels of the side of a square for which one token stands."""
        return self.patch * MERGE

    @property
    def processor(self):
        return {
            "image_processor_type": self.processor_type,
            "size": {"shortest_edge": 4 * self.unit**2, "longest_edge": 64 * self.unit**2},
            "patch_size": self.patch,
            "temporal_patch_size": 2,
            "merge_size": MERGE,
            "image_mean": [0.5, 0.4, 0.6],
            "image_std": [0.5, 0.6, 0.7],
        }

    def write_checkpoint(self, folder, seed=0, dtype=torch.float32, text=None, vision=None):
        """All files of the model; `text`, `vision` override fields of its config.json, which has the ids."""
        special = [*self.special, self.image, self.video]
        tokenizer = write_tokenizer(folder, special, self.template, CORPUS, VOCABULARY)
        config = getattr(transformers, f"{self.name}Config")(
            text_config={**self.text, **(text or {})},
            vision_config={**self.vision, **(vision or {})},
            image_token_id=tokenizer.token_to_id(self.image),
            video_token_id=tokenizer.token_to_id(self.video),
            vision_start_token_id=tokenizer.token_to_id(self.special[-2]),
            vision_end_token_id=tokenizer.token_to_id(self.special[-1]),
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.model_class(config)
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                    is_gain = any(norm in name for norm in ("norm", "ln_q")) and "weight" in name
                    torch.nn.init.normal_(parameter, mean=float(is_gain), std=0.2)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    torch.nn.init.normal_(buffer, std=0.2)
        model.generation_config.eos_token_id = 0
        model.to(dtype).save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(self.processor))
        return folder

    @property
    def model_class(self):
        return getattr(transformers, f"{self.name}ForConditionalGeneration")

    @property
    def library_processor(self):
        """The library's processor of images that is of one piece with Pillow."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil

    def reference(self, folder):
        return Reference(self, folder)


class Reference:
    """What transformers makes of a checkpoint: its Pillow processor, its positions, its greedy tokens."""

    def __init__(self, family, folder):
        self._family = family
        self._folder = folder
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.processor = family.library_processor.from_pretrained(folder)
        self.image_id = self.tokenizer.convert_tokens_to_ids(family.image)

    def prompt(self, messages, images):
        """Token ids of a chat, each image's placeholder expanded, and the images' grids (frames, rows, columns)."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        grids = self.pixels(images)["image_grid_thw"].tolist() if images else []
        pieces = text.split(self._family.image)
        assert len(pieces) == len(images) + 1
        runs = [self._family.image * (rows * columns // MERGE**2) for _, rows, columns in grids]
        whole = "".join(piece + run for piece, run in zip(pieces, [*runs, ""], strict=True))
        return self.tokenizer(whole, add_special_tokens=False)["input_ids"], [tuple(grid) for grid in grids]

    def pixels(self, images):
        return self.processor(images=images, return_tensors="pt")

    def resized(self, image):
        """uint8 [height, width, 3]: what the processor normalises and cuts into patches."""
        import numpy as np
        from PIL import Image

        _, rows, columns = self.pixels([image])["image_grid_thw"][0].tolist()
        size = columns * self._family.patch, rows * self._family.patch
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))

    @torch.inference_mode()
    def greedy(self, ids, images, count):
        """The first tokens after these ids. The model is made anew: it keeps positions of the one before."""
        model = self._family.model_class.from_pretrained(self._folder, dtype=torch.float32).eval()
        given = torch.tensor([ids])
        media = dict(self.pixels(images)) if images else {}
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            mm_token_type_ids=(given == self.image_id).int(),
            **media,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, len(ids) :].tolist()
