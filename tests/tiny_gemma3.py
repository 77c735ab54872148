"""A tiny random Gemma 3 checkpoint as it is published: weights, tokenizer, chat template, processor."""

import json
import re

import tiny_tokenizer
import torch
import transformers

SPECIAL = ["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
BEGIN, END, ROW = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
VOCABULARY = 384
CORPUS = ["what do you see in this picture, and what in that one", "a quire is a gathering of pages"]
TURNS = """\
{{- bos_token -}}
{%- set marks = MARKS -%}
{%- for message in messages -%}
{{ 'BEGIN' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
{%- if message['content'] is string -%}
{{ message['content'] | trim }}
{%- else -%}
{%- for item in message['content'] -%}
{%- if item['type'] in marks -%}{{ marks[item['type']] }}
{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ 'END\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'BEGINmodel\n' }}{%- endif -%}"""


def turns(begin, end, marks):
    """The chat template of turns between two tokens; `marks`: kind of a part -> the token that stands for it."""
    return TURNS.replace("BEGIN", begin).replace("END", end).replace("MARKS", repr(marks))


TEMPLATE = turns("<start_of_turn>", "<end_of_turn>", {"image": BEGIN})
PATCH, SIDE, TOKENS = 4, 48, 9
"""Pixels of the sides of a patch and of an image, and tokens of an image: averages of 4 * 4 patches."""
WINDOW = 7
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
    "query_pre_attn_scalar": 24,
    "max_position_embeddings": 1024,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    "eos_token_id": 0,
    "bos_token_id": 1,
    **WIDE,
}
VISION = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
    "vision_use_head": False,
}
PROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor",
    "processor_class": "Gemma3Processor",
    "do_convert_rgb": None,
    "do_pan_and_scan": None,
    "image_seq_length": TOKENS,
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.7],
}


def write_checkpoint(folder, seed=0, dtype=torch.float32, text=None, vision=None, spread=0.3, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config. `spread`: of weights of the
    tower."""
    tokenizer = write_tokenizer(folder)
    stated = {
        "boi_token_index": tokenizer.token_to_id(BEGIN),
        "eoi_token_index": tokenizer.token_to_id(END),
        "image_token_index": tokenizer.token_to_id(ROW),
        "mm_tokens_per_image": TOKENS,
        "tie_word_embeddings": False,
    }
    config = transformers.Gemma3Config(
        text_config={**TEXT, **(text or {})}, vision_config={**VISION, **(vision or {})}, **{**stated, **outer}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.Gemma3ForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # not the ones and zeros that would hide a mistake
                is_gain = "layer_norm" in name or ("layernorm" in name and "vision_tower" in name)
                torch.nn.init.normal_(parameter, mean=float(is_gain and "weight" in name), std=0.2)
            elif "vision_tower" in name or "projector" in name:
                torch.nn.init.normal_(parameter, std=spread)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": TOKENS}))
    return folder


def write_tokenizer(folder):
    names = {"boi_token": BEGIN, "eoi_token": END, "image_token": ROW, "bos_token": "<bos>", "eos_token": "<eos>"}
    return tiny_tokenizer.write_tokenizer(folder, [*SPECIAL, BEGIN, END, ROW], TEMPLATE, CORPUS, VOCABULARY, **names)


def library_model(folder, dtype=torch.float32):
    return transformers.Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder):
    """The library's processor of texts and images, by the slow path, which is of one piece with Pillow."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    return transformers.Gemma3Processor(
        Gemma3ImageProcessorPil.from_pretrained(folder, do_convert_rgb=True),
        transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        image_seq_length=TOKENS,
    )


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.row_id = self.tokenizer.convert_tokens_to_ids(ROW)

    def inputs(self, messages, images=()):
        """What the model reads: token ids [1, T] with each image written out, and their pixels."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        found, order = {}, iter(range(len(images)))
        if images:
            found = dict(self.processor.image_processor(images=list(images), return_tensors="pt"))
        text = re.sub(BEGIN, lambda _: self.processor.replace_image_token(found, next(order)), text)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        found.pop("num_crops", None)
        return {"input_ids": ids, **found, "token_type_ids": (ids == self.row_id).int()}

    @torch.inference_mode()
    def greedy(self, inputs, count):
        """The first tokens behind the inputs."""
        out = self.model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, inputs["input_ids"].shape[1] :].tolist()
