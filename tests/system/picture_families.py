"""Families that read pictures: how a tiny one is made, who says what it answers, what it is asked, on which engines."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tiny_gemma3
import tiny_gemma4
import tiny_glm4v
import tiny_idefics3
import tiny_internvl
import tiny_llava_next
import tiny_mistral3
import tiny_onevision
import tiny_paligemma
import tiny_qwen2_5_vl
import tiny_qwen2_vl
import tiny_qwen3_vl_moe
from noise_pictures import picture
from picture_chats import CHATS, openai_content

Flags = tuple[str, ...]
WHOLE: Flags = ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching")
FEW: Flags = ("--max-num-seqs", "8", "--block-size", "8")
CHUNKED: Flags = (*FEW, "--max-num-batched-tokens", "24")
TWO_RANKS: Flags = ("--tensor-parallel-size", "2")
DIVIDED: Flags = (*TWO_RANKS, "--mm-encoder-tp-mode", "weights")
GEMMA3_BLOCK = 8 * 4 * 2 * 2 * 16 * 4
"""Bytes of 8 tokens: 4 layers, keys and values, 2 heads of 16, float32."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "llama_4_scaling_beta": 0.7,
}


@dataclass(frozen=True)
class Family:
    write: Callable[[Path], Path]
    library: Callable[[Path], Any]
    """The reference: see `picture_chats.expected_of`."""
    engines: dict[str, Flags]
    chats: dict[str, list[Any]] = field(default_factory=lambda: CHATS)
    publish: Callable[[Path], Any] = lambda folder: folder
    """What becomes of the folder once the library has read it."""
    over_http: tuple[str, ...] = ()
    """Chats that are asked through OpenAI's door, too."""
    refused: tuple[tuple[Any, dict[str, Any], str], ...] = ()
    """Contents that are refused there, with fields of the request and a word of the refusal."""


def pages(tiny: Any, count: int) -> Flags:
    """So many pages of encoder memory: rows for 64 tokens each, in float32."""
    return "--mm-encoder-cache-bytes", str(count * 64 * tiny.TEXT["hidden_size"] * 4)


def tiles_chats() -> dict[str, list[Any]]:
    tile = tiny_internvl.TILE
    one, two, six = picture(tile, tile, 0), picture(130, 60, 1), picture(95, 64, 2)
    return {
        "first": [one, "what do you see"],
        "last": ["a quire is", six],
        "adjacent": [one, two, six, "and in that one"],
        "repeated": [two, "the", two, "pages", one, one],
        "text": ["a quire is a gathering of pages"],
        "other": [two, "what do you see"],
        "watched": [[picture(95, 64, seed) for seed in (3, 4, 3)], "and", six, "beside", [one]],
    }


def grids_chats() -> dict[str, list[Any]]:
    """The template places images first, then videos."""
    tile = tiny_onevision.TILE
    one, wide, large = picture(tile, tile, 0), picture(130, 40, 1), picture(500, 480, 2)
    return {
        "one": [one, "what do you see"],
        "large": [large, "a quire is"],
        "several": [one, wide, large, "and in that one"],
        "repeated": [wide, wide, one, one, "the pages"],
        "text": ["a quire is a gathering of pages"],
        "other": [wide, "what do you see"],
        "watched": [large, [picture(95, 64, seed) for seed in (3, 4, 3)], "and"],
        "still": [[wide], "and"],
    }


SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
CLIP = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
ROWS_CHATS = {name: CHATS[name] for name in ("first", "last", "adjacent", "repeated", "text")} | {
    "large": [picture(tiny_mistral3.LONGEST, 300, 3), "what do you see"]
}


def qwen(tiny: Any, engines: dict[str, Flags], **more: Any) -> Family:
    return Family(tiny.FAMILY.write_checkpoint, tiny.FAMILY.reference, engines, **more)


def mistral(engines: dict[str, Flags], write: Callable[[Path], Path] = tiny_mistral3.write_checkpoint, **more: Any):
    return Family(write, tiny_mistral3.Reference, engines, ROWS_CHATS, **more)


class OneVideo(tiny_gemma4.Reference):
    def watched(self, messages: Any, images: Any, videos: Any) -> Any:
        (video,) = videos
        return self.inputs(messages, images, video)


def gemma4(name: str, engines: dict[str, Flags], **more: Any) -> Family:
    return Family(partial(tiny_gemma4.write_checkpoint, name=name), OneVideo, engines, **more)


PALIGEMMA_BLOCK = 8 * 3 * 2 * 1 * 16 * 4
"""Bytes of 8 tokens: 3 layers, keys and values, a head of 16, float32."""
ONE_STEP: Flags = (*FEW, "--max-model-len", "96", "--max-num-batched-tokens", "96")


def paligemma(kind: str, engines: dict[str, Flags], **more: Any) -> Family:
    """Images stand before the one text of a prompt."""
    chats = {name: CHATS[name] for name in ("first", "text", "other")} | {"several": [*CHATS["adjacent"][:2], "what"]}
    write = partial(tiny_paligemma.write_checkpoint, kind=kind)
    return Family(write, tiny_paligemma.Reference, engines, chats, **more)


OLDER = {
    "two ranks": (*TWO_RANKS, "--no-enable-prefix-caching"),
    "two ranks share the tower in chunks": (*DIVIDED, *CHUNKED),
}
FAMILIES = {
    "InternVL": Family(
        tiny_internvl.write_checkpoint,
        tiny_internvl.Reference,
        {
            "one tile, in chunks": (*pages(tiny_internvl, 1), "--max-num-encoder-patches", "16", *CHUNKED),
            "two ranks": TWO_RANKS,
            "whole": WHOLE,
        },
        tiles_chats(),
        over_http=("last",),
    ),
    "OneVision": Family(
        tiny_onevision.write_checkpoint,
        tiny_onevision.Reference,
        {
            "one image, in chunks": (*pages(tiny_onevision, 2), "--max-num-encoder-patches", "18", *CHUNKED),
            "divided": DIVIDED,
            "whole": WHOLE,
        },
        grids_chats(),
        over_http=("large", "text"),
    ),
    "SmolVLM": Family(
        tiny_idefics3.write_checkpoint,
        tiny_idefics3.Reference,
        {
            "one tile, in chunks": (*pages(tiny_idefics3, 1), "--max-num-encoder-patches", "16", *CHUNKED),
            "two ranks": TWO_RANKS,
            "divided": DIVIDED,
        },
        {name: chat for name, chat in tiles_chats().items() if name != "watched"},
        over_http=("last",),
    ),
    "LLaVA-NeXT": Family(
        tiny_llava_next.write_checkpoint,
        tiny_llava_next.Reference,
        {"two ranks share the tower in chunks": (*DIVIDED, *pages(tiny_llava_next, 3), *CHUNKED)},
        {name: chat for name, chat in grids_chats().items() if name not in ("watched", "still")},
        over_http=("large",),
        refused=(([CLIP], {}, "video"),),
    ),
    "LLaVA 1.5": Family(
        tiny_llava_next.write_llava,
        tiny_llava_next.Reference,
        {"two ranks, in chunks": (*TWO_RANKS, *CHUNKED)},
        {name: chat for name, chat in grids_chats().items() if name not in ("watched", "still")},
    ),
    "Mistral 3": mistral(
        {"whole": WHOLE, "two ranks": (*TWO_RANKS, *pages(tiny_mistral3, 2), "--max-num-encoder-patches", "256")},
        over_http=("last",),
        refused=(([CLIP], {}, "video"),),
    ),
    "Ministral 3": mistral(
        {"two ranks, in chunks": (*TWO_RANKS, *CHUNKED)},
        lambda folder: tiny_mistral3.write_checkpoint(
            folder,
            text={"model_type": "ministral3", "rope_parameters": YARN, "tie_word_embeddings": True},
            tie_word_embeddings=True,
        ),
    ),
    "Pixtral": mistral({"in chunks": CHUNKED}, tiny_mistral3.write_llava),
    "Qwen2-VL": qwen(tiny_qwen2_vl, OLDER),
    "Qwen2.5-VL": qwen(tiny_qwen2_5_vl, OLDER),
    "Qwen3-VL with experts": qwen(
        tiny_qwen3_vl_moe, {"two ranks, in chunks": (*TWO_RANKS, *CHUNKED)}, publish=tiny_qwen3_vl_moe.publish
    ),
    "GLM-4.1V": qwen(tiny_glm4v, OLDER),
    "GLM-4.6V": Family(
        tiny_glm4v.NEWER.write_checkpoint,
        tiny_glm4v.NEWER.reference,
        {"a divided tower, in chunks": (*DIVIDED, *CHUNKED)},
    ),
    "GLM-4.5V": Family(
        tiny_glm4v.MOE.write_checkpoint,
        tiny_glm4v.MOE.reference,
        {"two ranks, experts dealt, in chunks": (*TWO_RANKS, "--enable-expert-parallel", *CHUNKED)},
    ),
    "Gemma 3": Family(
        tiny_gemma3.write_checkpoint,
        tiny_gemma3.Reference,
        {
            "preempted": (
                *("--kv-cache-memory-bytes", str(24 * GEMMA3_BLOCK), "--max-model-len", "160"),
                *(*FEW, "--max-num-batched-tokens", "20"),
            ),
            "divided, in chunks": (*DIVIDED, *FEW, "--max-num-batched-tokens", "16"),
            "whole": WHOLE,
        },
        over_http=("first", "many"),
        refused=(("what", {"mm_processor_kwargs": {"do_pan_and_scan": True}}, "do_pan_and_scan"),),
    ),
    "PaliGemma": paligemma(
        "gemma",
        {
            "preempted": (*("--kv-cache-memory-bytes", str(12 * PALIGEMMA_BLOCK)), *ONE_STEP),
            "divided": (*DIVIDED, *ONE_STEP),
        },
        over_http=("first",),
        refused=(
            (openai_content(CHATS["first"]), {"mm_processor_kwargs": {"max_pixels": 9}}, "max_pixels"),
            ([CLIP], {}, "video"),
        ),
    ),
    "PaliGemma 2": paligemma("gemma2", {"whole": ONE_STEP}),
    "Gemma 4, seen whole": gemma4(
        "large",
        {
            "preempted": (
                *(*FEW, "--max-num-batched-tokens", "80"),
                *("--max-model-len", "320", "--kv-cache-memory-bytes", "900000"),
            )
        },
        over_http=("first", "many"),
        refused=(
            ([SOUND], {}, "input_audio"),
            (openai_content(CHATS["first"]), {"mm_processor_kwargs": {"max_pixels": 9}}, "max_pixels"),
        ),
    ),
    "Gemma 4, with experts": gemma4("experts", {"two ranks": (*FEW, *TWO_RANKS, "--max-num-batched-tokens", "77")}),
    "Gemma 4, vectors of layers": gemma4("small", {"in chunks, a divided tower": (*DIVIDED, *CHUNKED)}),
    "Gemma 4, without a tower": gemma4("alone", {"which ranks cannot divide": DIVIDED}),
}
CASES = [(family, engine) for family, row in FAMILIES.items() for engine in row.engines]


def as_published_first(folder: Path, into: Path) -> Path:
    """A Qwen2-VL's folder of old: the decoder's fields beside the tower's, the rope under its old name, bounds of
    pixels under theirs."""
    for file in folder.iterdir():
        (into / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    config["torch_dtype"] = config.pop("dtype")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    size = processor.pop("size")
    bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    for name, stated in (("config", {**text, **config, **old}), ("preprocessor_config", {**processor, **bounds})):
        (into / f"{name}.json").unlink()
        (into / f"{name}.json").write_text(json.dumps(stated))
    return into
