"""A tiny random Idefics3 or SmolVLM checkpoint as it is published: weights, tokenizer, chat template, processor."""

import json

import tiny_tokenizer
import torch
import transformers

SPECIAL = ["<|im_start|>", "<|im_end|>", "<end_of_utterance>"]
AROUND, ALL, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
ROWS = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2, 3)]
"""Those that are tokens; others are text."""
VOCABULARY = 384
CORPUS = ["what do you see in this picture, and what in that one", "a quire is a gathering of pages\n\n"]
TEMPLATE = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
"""As published, it knows contents of parts alone."""
PATCH, MERGE, SIDE = 8, 2, 4
TILE = PATCH * SIDE + 2
"""Pixels of a tile's side, whose last two nobody reads."""
LONGEST = 4 * TILE
TOKENS = (SIDE // MERGE) ** 2
"""Tokens of a tile."""
# wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
WIDE = {"initializer_range": 0.15}
TEXT = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": None,
    **WIDE,
}
VISION = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": PATCH,
}
PROCESSOR = {
    "do_convert_rgb": True,
    "do_image_splitting": True,
    "do_resize": True,
    "max_image_size": {"longest_edge": TILE},
    "size": {"longest_edge": LONGEST},
    "resample": 1,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.7],
}


def write_checkpoint(folder, name="SmolVLM", seed=0, dtype=torch.float32, text=None, vision=None, **outer):
    """All files of the model; `text`, `vision`, `outer` override fields of its config."""
    tokenizer = write_tokenizer(folder)
    config = getattr(transformers, f"{name}Config")(
        text_config={**TEXT, **(text or {})},
        vision_config={**VISION, **(vision or {})},
        image_token_id=tokenizer.token_to_id(IMAGE),
        **{"scale_factor": MERGE, "tie_word_embeddings": False, "pad_token_id": None, **outer},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 or "position_embedding" in key:  # not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in key and "weight" in key), std=0.2)
            elif "vision_model" in key or "connector" in key:
                torch.nn.init.normal_(parameter, std=0.15)
    model.generation_config.eos_token_id = 0
    model.to(dtype).save_pretrained(folder)
    processor = {"image_processor_type": f"{name}ImageProcessor", **PROCESSOR}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": TOKENS}))
    return folder


def write_tokenizer(folder):
    return tiny_tokenizer.write_tokenizer(folder, [*SPECIAL, AROUND, ALL, IMAGE, *ROWS], TEMPLATE, CORPUS, VOCABULARY)


def library_model(folder, dtype=torch.float32):
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, architecture).from_pretrained(folder, dtype=dtype).eval()


def library_processor(folder, **changes):
    """The library's processor of texts and images of Idefics3, by the slow path, which is of one piece with Pillow.

    That of SmolVLM wants packages for videos; its rules for images are the same.
    """
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    return transformers.Idefics3Processor(
        Idefics3ImageProcessorPil(**{**PROCESSOR, **changes}),
        transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        image_seq_len=TOKENS,
    )


class Reference:
    """What transformers makes of a checkpoint: its processor's ids and pixels, its greedy tokens."""

    def __init__(self, folder):
        self.processor = library_processor(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = library_model(folder)
        self.row_id = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def inputs(self, messages, images=()):
        """What the model reads: token ids [1, T] with each image written out, and the pixels of all tiles."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return dict(self.processor(text=[text], images=[list(images)] if images else None, return_tensors="pt"))

    @torch.inference_mode()
    def greedy(self, inputs, count):
        """The first tokens behind the inputs."""
        out = self.model.generate(
            **{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])},
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, inputs["input_ids"].shape[1] :].tolist()
