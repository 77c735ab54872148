"""Tiny random Gemma 4 checkpoints as they are published: weights, tokenizer, chat template, processor. `small`: vectors
of layers, keys of others, clipped products, as in E2B; `large`: images whose tokens see each other, as in 31B, with
experts as in 26B; `alone`: patches that are tokens, as in 12B."""

import importlib
import json
import re
import sys
import types
from unittest import mock

import tiny_gemma3
import tiny_tokenizer
import torch
import transformers
from transformers.models.gemma4_unified import modeling_gemma4_unified
from transformers.video_utils import VideoMetadata

SPECIAL = ["<eos>", "<bos>", "<pad>", "<|turn>", "<turn|>"]
BEGIN, ROW, END, VIDEO = "<|image>", "<|image|>", "<image|>", "<|video|>"
VOCABULARY = 384
TEMPLATE = tiny_gemma3.turns("<|turn>", "<turn|>", {"image": ROW, "video": VIDEO})
PATCH, POOL, TOKENS = 4, 3, 70
"""Pixels of a patch's side, patches of a token's, and most tokens of an image."""
WINDOW = 9
"""Tokens that a layer with a window sees: fewer than an image has."""
WIDE = {"initializer_range": 0.15}
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 1024,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 10.0,
    "eos_token_id": 0,
    "bos_token_id": 1,
    "pad_token_id": 2,
    **WIDE,
}
TEXTS = {
    "small": {
        "hidden_size_per_layer_input": 9,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
    "large": {"use_bidirectional_attention": "vision", "num_global_key_value_heads": 2, "attention_k_eq_v": True},
    "experts": {
        "use_bidirectional_attention": "vision",
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "alone": {},
}
TOWER = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": PATCH,
    "pooling_kernel_size": POOL,
    "position_embedding_size": TOKENS * POOL,
}
PATCHES = {
    "patch_size": PATCH,
    "pooling_kernel_size": POOL,
    "mm_embed_dim": 40,
    "output_proj_dims": 40,
    "mm_posemb_size": TOKENS,
}
VISIONS = {
    "small": {**TOWER, "use_clipped_linears": True},
    "large": {**TOWER, "standardize": True},
    "experts": {**TOWER, "standardize": True},
    "alone": PATCHES,
}
PROCESSOR = {
    "do_convert_rgb": True,
    "do_normalize": False,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
    "max_soft_tokens": TOKENS,
    "patch_size": PATCH,
    "pooling_kernel_size": POOL,
    "resample": 3,
    "rescale_factor": 1 / 255,
}


def kind_of(name):
    """What the names of the library's classes begin with."""
    return "Gemma4Unified" if name == "alone" else "Gemma4"


def write_checkpoint(folder, name="large", seed=0, dtype=torch.float32, text=None, vision=None, spread=0.3, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config. `spread`: of weights of the
    tower."""
    tokenizer = write_tokenizer(folder)
    tokens = {"boi_token_id": BEGIN, "eoi_token_id": END, "image_token_id": ROW, "video_token_id": VIDEO}
    stated = {field: tokenizer.token_to_id(token) for field, token in tokens.items()}
    config = getattr(transformers, f"{kind_of(name)}Config")(
        text_config={**TEXT, **TEXTS[name], **(text or {})},
        vision_config={**VISIONS[name], **(vision or {})},
        **{**stated, "audio_token_id": None, **outer},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{kind_of(name)}ForConditionalGeneration")(config)
        for path, values in [*model.named_parameters(), *model.named_buffers()]:
            _draw(path, values, spread)
        # nothing makes these tokens, which the library reads as padding wherever they stand
        model.get_input_embeddings().weight.data[[tokenizer.token_to_id(ROW), tokenizer.token_to_id(VIDEO)]] = 0.0
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    sizes = {field: config.to_dict()["vision_config"][field] for field in ("patch_size", "pooling_kernel_size")}
    image = {**PROCESSOR, **sizes, "image_processor_type": f"{kind_of(name)}ImageProcessor"}
    made = {"image_processor": image, "image_seq_length": 280, "processor_class": f"{kind_of(name)}Processor"}
    (folder / "processor_config.json").write_text(json.dumps(made))
    return folder


def _draw(path, values, spread):
    """Not the ones, zeros and infinities that would hide a mistake."""
    if path.endswith(("_min", "_max")):
        least = 1.5 if "input" in path else 3.0
        values.data.fill_(torch.rand(()).mul(0.5).add(least).mul(1 if path.endswith("_max") else -1))
    elif "rotary" in path or "embed_scale" in path or "inv_freq" in path or "per_layer" in path:
        return
    elif values.ndim == 1 and ("norm" in path or "layer_scalar" in path or "std_" in path or "ln" in path):
        is_gain = not path.endswith(("bias",))
        torch.nn.init.normal_(values, mean=float(is_gain), std=0.2)
    elif "vision_tower" in path or "embed_vision" in path:
        torch.nn.init.normal_(values, std=spread)


def write_tokenizer(folder):
    names = {"boi_token": BEGIN, "eoi_token": END, "image_token": ROW, "bos_token": "<bos>", "eos_token": "<eos>"}
    return tiny_tokenizer.write_tokenizer(
        folder, [*SPECIAL, BEGIN, ROW, END, VIDEO], TEMPLATE, tiny_gemma3.CORPUS, VOCABULARY, **names
    )


def library_model(folder, dtype=torch.float32):
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()


def library_images(folder):
    """The library's processor of images, by the slow path, which is of one piece with Pillow; that of the 12B kind
    joins in squares what this one makes."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    stated = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    return Gemma4ImageProcessorPil(**{name: value for name, value in stated.items() if name != "image_processor_type"})


class Reference:
    """What transformers makes of a checkpoint: its processor's pixels, its ids, its greedy tokens."""

    def __init__(self, folder):
        self.images = library_images(folder)
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.model = library_model(folder)
        self.row_id, self.video_id = map(self.tokenizer.convert_tokens_to_ids, (ROW, VIDEO))

    def pixels(self, images):
        """pixel_values and image_position_ids as the model reads them, and the tokens of each image."""
        found = dict(self.images(images=list(images), return_tensors="pt"))
        counts = [int(one) for one in found.pop("num_soft_tokens_per_image")]
        if self.model.config.model_type == "gemma4_unified":
            merge = library_file("gemma4_unified.image_processing_gemma4_unified").patches_merge
            joined = [
                merge(one[None, : POOL**2 * count], where[None, : POOL**2 * count], count)
                for one, where, count in zip(*found.values(), counts, strict=True)
            ]
            found = {
                name: torch.cat([_padded(one[number], TOKENS, value) for one in joined])
                for number, (name, value) in enumerate({"pixel_values": 0.0, "image_position_ids": -1}.items())
            }
        return found, counts

    def rows(self, images, dtype=torch.float32):
        """The decoder's rows of images."""
        found, _ = self.pixels(images)
        made = self.model.to(dtype).model.get_image_features(
            **{**found, "pixel_values": found["pixel_values"].to(dtype)}
        )
        return torch.cat(list(made.pooler_output))

    def inputs(self, messages, images=(), video=()):
        """What the model reads: token ids [1, T] with each image written out and the video, a list of frames at 24 a
        second, and their pixels."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        found, counts = self.pixels(images) if images else ({}, [])
        order = iter(counts)
        text = re.sub(re.escape(ROW), lambda _: f"{BEGIN}{ROW * next(order)}{END}", text)
        if video:
            frames, counts = self.pixels(video)
            found["pixel_values_videos"], found["video_position_ids"] = (one[None] for one in frames.values())
            text = text.replace(VIDEO, written(len(video), counts[0]))
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        return {"input_ids": ids, **found, "mm_token_type_ids": (ids == self.row_id).int() + 2 * (ids == self.video_id)}

    @torch.inference_mode()
    def greedy(self, inputs, count):
        """The first tokens behind the inputs."""
        with mock.patch.object(modeling_gemma4_unified, "create_masks_for_generate", _masks):
            out = self.model.generate(
                **inputs,
                attention_mask=torch.ones_like(inputs["input_ids"]),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                suppress_tokens=None,
            )
        return out[0, inputs["input_ids"].shape[1] :].tolist()


def written(num_frames, num_tokens, fps=24.0):
    """What the library's processor writes for a video, all of whose frames are read."""
    names = types.SimpleNamespace(boi_token=BEGIN, video_token=VIDEO, eoi_token=END)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, frames_indices=list(range(num_frames)))
    found = {"num_soft_tokens_per_video": [num_tokens], "video_metadata": [metadata]}
    return library_file("gemma4.processing_gemma4").Gemma4Processor.replace_video_token(names, found, 0)


def _masks(block_sequence_ids, **others):
    """The masks of the 12B kind that its `create_masks_for_generate` makes for a static cache, and Gemma 4's others for
    any. For other caches it has those of Gemma 3, by which images see each other in layers without a window, too."""
    return modeling_gemma4_unified.create_masks_for_vision_model(block_sequence_ids=block_sequence_ids, **others)


def library_file(name):
    """A module of the library, without torchvision: it is imported with empty ones in that place."""
    packages = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    empty = {at: types.ModuleType(at) for at in (*packages, f"{packages[-1]}.functional")}
    empty[f"{packages[-1]}.functional"].InterpolationMode = object
    with mock.patch.dict(sys.modules, empty):
        return importlib.import_module(f"transformers.models.{name}")


def _padded(tensor, length, value):
    return torch.nn.functional.pad(tensor, (0, 0, 0, length - tensor.shape[1]), value=value)
