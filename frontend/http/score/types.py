"""Requests and answers of /score and /rerank."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from quire.frontend.http.fields.tagged import TextPart, read_text
from quire.proto.messages.params import ParameterError

PARTS = {"text": TextPart}


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text as an object: `text`, or `content` in parts of a chat."""

    text: str | None = None
    content: str | list[msgspec.Raw] | None = None


Texts = str | Document | list[str | Document]


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both routes. A cosine is what it is: `use_activation` and its other names are for heads."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    request_id: str | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    instruction: str | None = None
    """Text that says what to look for, where the template of a reranker shows it."""
    chat_template: None = None
    mm_processor_kwargs: None = None
    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None

    @property
    def activates(self) -> bool | None:
        """Numbers of a head go through its activation; None: as the model's files say."""
        given = (one for one in (self.use_activation, self.activation, self.softmax) if one is not None)
        return next(given, None)


class RerankBody(Common, kw_only=True, forbid_unknown_fields=True):
    """Jina's, Cohere's and vLLM's; with `texts` in place of `documents` the answer is TEI's list."""

    query: str | Document
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    """True is `use_activation` false."""
    truncate: bool | None = None
    """True is `truncate_prompt_tokens` -1."""
    rank_fields: None = None
    max_chunks_per_doc: None = None


class ScoreBody(Common, kw_only=True, forbid_unknown_fields=True):
    """One of LEFT and one of RIGHT."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    query: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    label_token_ids: None = None
    apply_softmax: None = None
    item_first: None = None

    def sides(self) -> tuple[str, str]:
        """The names of the two fields that are set. Raises `ParameterError`."""
        return self._one(LEFT), self._one(RIGHT)

    def _one(self, names: Sequence[str]) -> str:
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            raise ParameterError(names[0], f"is missing; set it, or one of {', '.join(names[1:])}")
        if len(given) > 1:
            raise ParameterError(given[1], f"excludes {given[0]}; set only one of them")
        return given[0]


LEFT = ("text_1", "data_1", "queries", "query")
RIGHT = ("text_2", "data_2", "documents", "items")


class Usage(msgspec.Struct):
    """`total_tokens` is the same: nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class RankedText(msgspec.Struct):
    text: msgspec.Raw | str


class Ranked(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(msgspec.Struct):
    id: str
    model: str
    results: list[Ranked]
    usage: Usage


class RankedByText(msgspec.Struct, omit_defaults=True):
    """TEI's: the whole answer is a list of them."""

    index: int
    score: float
    text: msgspec.Raw | str | None = None


class ScoreItem(msgspec.Struct):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(msgspec.Struct):
    id: str
    data: list[ScoreItem]
    model: str
    usage: Usage
    created: int
    object: Literal["list"] = "list"


def text_of(one: str | Document, path: str) -> str:
    """The text of a document. Raises `ParameterError` for one without text, or with parts that are not text."""
    if isinstance(one, str):
        return one
    if (one.text is None) == (one.content is None):
        raise ParameterError(path, "needs exactly one of text and content")
    return one.text if one.text is not None else read_text(one.content, PARTS, f"{path}.content")


def texts_of(given: Texts, path: str) -> list[str]:
    """The texts of one side of a score."""
    if isinstance(given, str | Document):
        return [text_of(given, path)]
    return [text_of(one, f"{path}[{index}]") for index, one in enumerate(given)]
