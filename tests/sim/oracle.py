"""The content oracle: a "model" whose every number is a hash of all it was shown.

A KV cell is eight bytes that depend on the tenant and on every token up to its position; the drawn token depends on
all cells read, the request's seed and the output index. Whatever is stale, foreign, missing or at the wrong position
changes what comes out, and `reference` is, without batching, blocks or steps, what should have come.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import FinishReason

CELL = 8
"""Bytes of one KV cell."""


def extend(chain: bytearray, tenant: bytes, tokens: Iterable[int]) -> None:
    """Append the cells of `tokens` to `chain`, the cells of every position before them."""
    previous = bytes(chain[-CELL:]) if chain else blake2b(tenant, digest_size=CELL).digest()
    for token in tokens:
        previous = blake2b(token.to_bytes(4, "little", signed=True), key=previous, digest_size=CELL).digest()
        chain += previous


def draw(
    cells: bytes | bytearray, params: SamplingParams, output_index: int, vocab: int, banned: frozenset[int]
) -> int:
    """The next token after `cells`; `banned` tokens are drawn again (a mask over the logits)."""
    key = params.seed.to_bytes(8, "little", signed=True) + output_index.to_bytes(2, "little")
    number = int.from_bytes(blake2b(cells, key=key, digest_size=8).digest(), "little")
    while number % vocab in banned:
        number //= vocab
        if number == 0:
            return next(token for token in range(vocab) if token not in banned)
    return number % vocab


def stops(params: SamplingParams, eos: Sequence[int]) -> frozenset[int]:
    """Tokens that end an output."""
    return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))


def banned(params: SamplingParams, eos: Sequence[int], num_output: int) -> frozenset[int]:
    """Tokens masked for the output token of index `num_output`: no end before `min_tokens`.

    For every second request the mask is forgotten: the scheduler must not end an output too early by itself.
    """
    return stops(params, eos) if num_output < params.min_tokens and params.seed % 2 else frozenset()


@dataclass(frozen=True, slots=True)
class Stream:
    """One output as a run alone would give it."""

    tokens: tuple[int, ...]
    reason: FinishReason
    stop_token_id: int


def reference(
    tenant: bytes, prompt: Sequence[int], params: SamplingParams, output_index: int, vocab: int, eos: Sequence[int]
) -> Stream:
    chain = bytearray()
    extend(chain, tenant, prompt)
    ends = stops(params, eos)
    tokens: list[int] = []
    while True:
        token = draw(chain, params, output_index, vocab, banned(params, eos, len(tokens)))
        tokens.append(token)
        if token in ends and len(tokens) >= params.min_tokens:
            return Stream(tuple(tokens), "stop", token)
        if len(tokens) == params.max_tokens:
            return Stream(tuple(tokens), "length", -1)
        extend(chain, tenant, (token,))
