"""Parts that the answers of several routes share."""

from typing import Any

import msgspec
from starlette.responses import Response

from quire.proto.message import Usage

_encode = msgspec.json.Encoder().encode


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class UsageBlock(msgspec.Struct):
    """OpenAI's `usage`."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens


def json_response(item: Any, status: int = 200) -> Response:
    """`item` encoded by msgspec."""
    return Response(_encode(item), status, media_type="application/json")


def usage_block(usages: list[Usage]) -> UsageBlock:
    """Of the outputs of one prompt: the prompt counts once, what any of them found cached counts once."""
    prompt = max((usage.prompt_tokens for usage in usages), default=0)
    cached = max((usage.cached_tokens for usage in usages), default=0)
    completion = sum(usage.completion_tokens for usage in usages)
    return UsageBlock(prompt, prompt + completion, completion, CachedTokens(cached))


def total_usage(blocks: list[UsageBlock]) -> UsageBlock:
    """Of several prompts."""
    prompt = sum(block.prompt_tokens for block in blocks)
    completion = sum(block.completion_tokens for block in blocks)
    cached = sum(block.prompt_tokens_details.cached_tokens for block in blocks)
    return UsageBlock(prompt, prompt + completion, completion, CachedTokens(cached))
