"""A tiny random Qwen3-VL checkpoint as it is published: weights, tokenizer, chat template, processor."""

import json

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
PATCH, MERGE = 16, 2
FACTOR = PATCH * MERGE
"""Pixels of the side of a square for which one token stands."""
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
    # wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
    "initializer_range": 0.15,
    "eos_token_id": 0,
    "bos_token_id": 0,
}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 2],
    "initializer_range": 0.15,
}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 4 * FACTOR * FACTOR, "longest_edge": 64 * FACTOR * FACTOR},
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": MERGE,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.7],
}


def write_checkpoint(folder, seed=0, dtype=torch.float32, text=None, vision=None):
    """All files of the model; `text`, `vision` override fields of its config. The token ids are in `config.json`."""
    tokenizer = write_tokenizer(folder)
    config = transformers.Qwen3VLConfig(
        text_config={**TEXT, **(text or {})},
        vision_config={**VISION, **(vision or {})},
        image_token_id=tokenizer.token_to_id(IMAGE),
        video_token_id=tokenizer.token_to_id(VIDEO),
        vision_start_token_id=tokenizer.token_to_id(SPECIAL[3]),
        vision_end_token_id=tokenizer.token_to_id(SPECIAL[4]),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.Qwen3VLForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.2)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def write_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, IMAGE, VIDEO],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[0],
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


class Reference:
    """What transformers makes of a checkpoint: its Pillow processor, its positions, its greedy tokens."""

    def __init__(self, folder):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._folder = folder
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.image_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def prompt(self, messages, images):
        """Token ids of a chat, each image's placeholder expanded, and the images' grids (frames, rows, columns)."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        grids = self.pixels(images)["image_grid_thw"].tolist() if images else []
        pieces = text.split(IMAGE)
        assert len(pieces) == len(images) + 1
        runs = [IMAGE * (rows * columns // MERGE**2) for _, rows, columns in grids]
        whole = "".join(piece + run for piece, run in zip(pieces, [*runs, ""], strict=True))
        return self.tokenizer(whole, add_special_tokens=False)["input_ids"], [tuple(grid) for grid in grids]

    def pixels(self, images):
        return self.processor(images=images, return_tensors="pt")

    def resized(self, image):
        """uint8 [height, width, 3]: what the processor normalises and cuts into patches."""
        import numpy as np
        from PIL import Image

        _, rows, columns = self.pixels([image])["image_grid_thw"][0].tolist()
        size = columns * PATCH, rows * PATCH
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))

    @torch.inference_mode()
    def greedy(self, ids, images, count):
        """The first tokens after these ids. The model is made anew: it keeps positions of the one before."""
        model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(self._folder, dtype=torch.float32).eval()
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
