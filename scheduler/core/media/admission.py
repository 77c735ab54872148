"""Admission of items: their spans fit the prompt, and the memory and the steps of the workers."""

import math
import re
import struct
from collections.abc import Iterable

from quire.proto.messages.media import DIGEST_BYTES, MAX_ITEMS, NO_VIDEO, PLAIN, Media, MediaFacts, MediaSpan
from quire.proto.messages.requests import ModelFacts
from quire.proto.prefix_key import Placeholders
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.admission import Refusal
from quire.scheduler.state.encoder_memory import key_of

MAX_ELAPSED = 2**24
"""Positions of one video in time: those that float32 tells apart."""
FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
"""A folder of the media folder, whose name begins with no dot."""


def placeholders(media: Iterable[Media]) -> tuple[Placeholders, ...]:
    """Placeholders of these items: their digests are part of the identity of the blocks they touch."""
    return tuple(Placeholders(item.span.start, item.span.stop, _identity(item)) for item in media)


def check_media(media: tuple[Media, ...], num_prompt: int, facts: ModelFacts, config: SchedulerConfig) -> None:
    """Check that the items of a prompt make sense, and that the model and its memory can take them.

    Raises `Refusal`: UNSUPPORTED, INVALID_PARAMETER or EXCEEDS_CAPACITY.
    """
    if not media:
        return
    if facts.media is None:
        message = f"{facts.architecture} reads text alone here, and the prompt has {len(media)} images or videos; "
        raise Refusal("UNSUPPORTED", "media", f"{message}leave them out, or ask an engine with a model that reads them")
    if len(media) > MAX_ITEMS:
        raise _invalid(f"has {len(media)} images or videos, at most {MAX_ITEMS} are allowed; send fewer")
    begun = 0
    for number, item in enumerate(media):
        if item.span.elapsed != NO_VIDEO:
            _check_follows(number, item.span, media[number - 1].span if number else None)
        if not begun <= item.span.start < item.span.stop <= num_prompt:
            span = f"has the tokens {item.span.start} to {item.span.stop - 1}"
            raise _invalid(f"item {number} {span}; those behind the items before it are {begun} to {num_prompt - 1}")
        begun = item.span.stop
        _check_item(number, item, facts.media)
        if facts.media.whole_spans and config.enable_chunked_prefill:
            _check_step(number, item.span.num_tokens, config)
        _check_pages(f"image {number}", facts.media.pages_for(item.span.num_encoded), facts)
    if facts.whole_prompts or not config.enable_chunked_prefill:
        items = {key_of(item): item.span for item in media}.values()
        num_pages = sum(facts.media.pages_for(span.num_encoded) for span in items)
        who = f"a prompt runs in one step here, and its {len(items)} different images together"
        _check_pages(who, num_pages, facts)
        num_patches, most = sum(span.num_patches for span in items), config.max_num_encoder_patches
        if len(items) > 1 and num_patches > most:
            message = f"{who}: {num_patches} patches are more than a step encodes, {most}; send "
            raise Refusal("EXCEEDS_CAPACITY", "media", f"{message}smaller images, or raise max_num_encoder_patches")


def _check_follows(number: int, span: MediaSpan, before: MediaSpan | None) -> None:
    """An item of a video stands right behind the one before it, and is as large and no earlier."""
    follows = before is not None and before.stop == span.start and before.grid[1:] == span.grid[1:]
    if before is None or not follows or not max(0, before.elapsed) <= span.elapsed <= MAX_ELAPSED:
        raise _invalid(f"item {number} has elapsed {span.elapsed}, but goes on with no video of its size and time")


def _check_item(number: int, item: Media, facts: MediaFacts) -> None:
    span = item.span
    grid = span.grid
    side = math.isqrt(facts.tokens_by)
    if len(grid) < PLAIN or min(grid[:PLAIN]) < 1 or min(grid) < 0:
        raise _invalid(f"item {number} has the grid {list(grid)}, which is none of frames, rows and columns")
    places = span.num_encoded * facts.tokens_by
    # a tower that lays its rows out itself makes fewer of them, and at most one more behind each row of patches
    fits = places == span.num_patches if len(grid) == PLAIN else places <= span.num_patches + grid[1]
    if span.num_breaks * side not in (0, grid[1]) or not fits:
        by = f"{span.num_breaks} breaks, but a token stands for {facts.tokens_by} patches"
        raise _invalid(f"item {number} has {span.num_tokens} tokens, the grid {list(grid)} and {by}")
    if grid[0] > 1 and "video" not in facts.kinds:
        message = f"item {number} has {grid[0]} frames, and the engine takes only {', '.join(facts.kinds)}; send images"
        raise Refusal("UNSUPPORTED", "media", message)
    if len(item.digest) != DIGEST_BYTES:
        raise _invalid(f"item {number} has a digest of {len(item.digest)} bytes, not {DIGEST_BYTES}")
    if FOLDER.fullmatch(item.folder) is None:
        raise _invalid(f"item {number} names {item.folder[:80]!r}, which is no folder of the media folder")
    if item.num_bytes < 1:
        raise _invalid(f"item {number} has a file of {item.num_bytes} bytes")


def _identity(item: Media) -> bytes:
    """Its digest and its time in a video: all that the KV of its tokens depends on."""
    return item.digest if item.span.elapsed == NO_VIDEO else item.digest + struct.pack("<q", item.span.elapsed)


def _check_step(number: int, num_tokens: int, config: SchedulerConfig) -> None:
    """A step has room for the tokens of an item together, whoever else draws in it."""
    most = config.max_num_batched_tokens - config.max_num_seqs + 1
    if num_tokens > most:
        message = f"image {number} has {num_tokens} tokens that run in one step, beside others {most} have room in it; "
        raise Refusal("EXCEEDS_CAPACITY", "media", f"{message}start the server with a larger max_num_batched_tokens")


def _check_pages(who: str, num_pages: int, facts: ModelFacts) -> None:
    """The encoder memory holds so much at once."""
    assert facts.media is not None
    if num_pages > facts.media.num_pages:
        rows = facts.media.page_rows
        message = f"{who}: {num_pages} pages of {rows} rows are more than the encoder memory, {facts.media.num_pages}; "
        remedy = "send smaller images, or start the server with a larger mm_encoder_cache_bytes"
        raise Refusal("EXCEEDS_CAPACITY", "media", f"{message}{remedy}")


def _invalid(message: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", "media", message)
