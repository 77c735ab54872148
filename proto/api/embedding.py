"""Requests for vectors and for scores, and their answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.proto.api.chat import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts, token ids or chats to turn into vectors."""

    inputs: Sequence[str | Sequence[int] | Chat] = ()
    request_id: str | None = None
    model: str | None = None
    dimensions: int | None = None
    """Number of leading components that are kept and normalised again. Default: all."""
    normalize: bool | None = None
    """Normalise vectors. Default: as the model was trained to be used."""
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    prompt_name: str | None = None
    """Prompt of the model's own that is put in front of each text. Default: the one that its files name, if any."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One float32 vector per input, in their order."""

    request_id: str
    model: str
    vectors: Sequence[Sequence[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A query and documents to compare: by their vectors, or by a model that reads both together."""

    query: str | None = None
    documents: Sequence[str] = ()
    queries: Sequence[str] = ()
    """One for each document, in place of `query`."""
    request_id: str | None = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    max_tokens_per_doc: int | None = None
    max_tokens_per_query: int | None = None
    use_activation: bool | None = None
    """False: the raw number of a model that reads both together. Default: as that model's files say, a sigmoid."""
    instruction: str | None = None
    """A text for a model whose template of pairs shows one: what to look for."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One score per document, in their order: a cosine in [-1, 1], or as the model's files or its head say."""

    request_id: str
    model: str
    scores: Sequence[float]
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """Texts, token ids or chats to give labels."""

    inputs: Sequence[str | Sequence[int] | Chat] = ()
    request_id: str | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    use_activation: bool | None = None
    """False: the raw numbers of the model's head. Default: as its files say, softmax, sigmoid or none."""


@dataclass(frozen=True, slots=True)
class Classifications:
    """A number for each label of each input, in their order."""

    request_id: str
    model: str
    labels: Sequence[str]
    probs: Sequence[Sequence[float]]
    prompt_tokens: int
    token_probs: Sequence[Sequence[float]] = ()
    """In place of `probs` where the model labels tokens: of each input [tokens * labels], as `of_tokens` parts them."""

    def of_tokens(self, index: int) -> Sequence[Sequence[float]]:
        """The numbers of the tokens of an input, special ones included: [tokens][labels]."""
        numbers, width = self.token_probs[index], len(self.labels)
        return [numbers[start : start + width] for start in range(0, len(numbers), width)]

    @property
    def best(self) -> Sequence[str]:
        """The label of each input whose number is the greatest, the first of equal ones."""
        return [self.labels[max(range(len(numbers)), key=numbers.__getitem__)] for numbers in self.probs]
