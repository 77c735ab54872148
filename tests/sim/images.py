"""Images in prompts: which stand where is a function of the prompt, so prompts that begin alike mostly have the same.

A model that is shown an image is a model that is shown other tokens: those that `shown` makes of the placeholders.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

from msgspec import structs

from quire.proto.messages.media import Media, MediaFacts, MediaSpan
from quire.scheduler.config import SchedulerConfig

FOLDER = "frontend-1"
TOKENS_BY = 4


@dataclass(slots=True)
class Images:
    """The images of one run."""

    rng: random.Random
    facts: MediaFacts
    max_patches: int
    """Patches that a step may encode."""
    every: int
    """An image stands where a token is a multiple of this."""
    lost_rate: float
    """Share of encodes that find no file."""
    sizes: list[int] = field(default_factory=list)
    """Tokens of each image. The digest is made of its number."""

    def draw(self, prompt: Sequence[int]) -> tuple[Media, ...]:
        """The images of a prompt; sometimes others than usual, seldom none or nonsense."""
        if self.rng.random() < 0.1:
            return ()
        variant = self.rng.choice((0, 0, 0, 0, 1, 2))
        media: list[Media] = []
        position = 0
        while position < len(prompt):
            number = (prompt[position] + variant) % len(self.sizes)
            if prompt[position] % self.every or position + self.sizes[number] > len(prompt):
                position += 1
                continue
            media.append(self._item(number, position))
            position = media[-1].span.stop
        if media and self.rng.random() < 0.02:
            media[-1] = self._nonsense(media[-1], len(prompt))
        return tuple(media)

    def is_lost(self, digest: bytes, step: int) -> bool:
        key = blake2b(digest + step.to_bytes(8, "little"), digest_size=4).digest()
        return int.from_bytes(key, "little") < self.lost_rate * 2**32

    def reasons(self, media: tuple[Media, ...], num_prompt: int, config: SchedulerConfig) -> set[str]:
        """Reasons for which a prompt with these images may not be admitted."""
        found: set[str] = set()
        stop = 0
        for item in media:
            span, num_pages = item.span, self.facts.pages_for(item.span.num_encoded)
            makes_sense = stop <= span.start < span.stop <= num_prompt and item.num_bytes > 0
            makes_sense = makes_sense and span.num_patches == span.num_encoded * TOKENS_BY and len(item.digest) == 32
            if not makes_sense or item.folder != FOLDER:
                found.add("INVALID_PARAMETER")
            if num_pages > self.facts.num_pages:
                found.add("EXCEEDS_CAPACITY")
            most = config.max_num_batched_tokens - config.max_num_seqs + 1
            if self.facts.whole_spans and config.enable_chunked_prefill and span.num_tokens > most:
                found.add("EXCEEDS_CAPACITY")
            stop = span.stop
        if not config.enable_chunked_prefill:
            spans = {item.digest: item.span for item in media}.values()
            num_pages = sum(self.facts.pages_for(span.num_encoded) for span in spans)
            num_patches = sum(span.num_patches for span in spans)
            if num_pages > self.facts.num_pages or (len(spans) > 1 and num_patches > self.max_patches):
                found.add("EXCEEDS_CAPACITY")
        return found

    def _item(self, number: int, start: int) -> Media:
        digest = sha256(b"%d" % number).digest()
        span = MediaSpan(start, self.sizes[number], (1, TOKENS_BY, self.sizes[number]))
        return Media(span, digest, FOLDER, 48 * span.num_patches)

    def _nonsense(self, item: Media, num_prompt: int) -> Media:
        span = item.span
        return self.rng.choice(
            (
                structs.replace(item, span=structs.replace(span, start=num_prompt - span.num_tokens + 1)),
                structs.replace(item, span=structs.replace(span, grid=(1, TOKENS_BY, span.num_tokens + 1))),
                structs.replace(item, span=structs.replace(span, start=-1)),
                structs.replace(item, digest=b"short"),
                structs.replace(item, folder=".."),
                structs.replace(item, num_bytes=0),
            )
        )


def draw_images(rng: random.Random, *, whole: bool) -> Images:
    """`whole`: the tokens of an image see each other.

    Memory and steps take at least the largest image but one; of some runs the largest fits no step with others.
    """
    largest = rng.choice((1, 3, 8, 20))
    sizes = [largest, *(rng.choice((largest, rng.randint(1, largest))) for _ in range(rng.choice((1, 3, 6))))]
    page_rows = rng.choice((1, 2, 3, 8))
    num_pages = -(-largest // page_rows) * rng.choice((1, 1, 1, 2, 8)) + rng.choice((0, 0, 1))
    facts = MediaFacts(("image",), TOKENS_BY, page_rows, num_pages, whole)
    max_patches = int(largest * TOKENS_BY * rng.choice((1.0, 1.0, 1.5, 3.0, 50.0)))
    images = Images(rng, facts, max_patches, rng.choice((2, 3, 5, 9)), rng.choice((0, 0, 0.1, 0.4)), sizes)
    if rng.random() < 0.2:
        images.sizes.append(largest + 1)
    return images


def shown(tokens: Iterable[int], media: Iterable[Media]) -> list[int]:
    """Tokens as the model sees them: those of images depend on which image it is, and on the place in it."""
    seen = list(tokens)
    for item in media:
        for offset in range(item.span.num_tokens):
            at = item.span.start + offset
            row = blake2b(item.digest + b"%d %d" % (offset, seen[at]), digest_size=4).digest()
            seen[at] = int.from_bytes(row, "little", signed=True)
    return seen
