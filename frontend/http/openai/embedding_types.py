"""Requests and answers of /v1/embeddings: OpenAI's, with vLLM's extensions."""

from typing import Literal

import msgspec

from quire.frontend.http.openai.embedding_formats import Dtype, Endianness, Format
from quire.frontend.http.openai.input_body import InputBody


class EmbeddingsBody(InputBody, kw_only=True, forbid_unknown_fields=True):
    """`input` or `messages`, and the form of their vectors."""

    encoding_format: Format = "float"
    embed_dtype: Dtype = "float32"
    endianness: Endianness = "little"
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class EmbeddingUsage(msgspec.Struct):
    """`total_tokens` is the same: nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct):
    """`embedding` is a list of numbers, or base64 of `embed_dtype`."""

    index: int
    embedding: msgspec.Raw | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    id: str
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    created: int
    object: Literal["list"] = "list"
