"""Answers that are vectors: those of embedding models, and the numbers of labels that a head makes, of a classifier, a
reranker, a reward model."""

from typing import Literal

import msgspec

Activation = Literal["none", "sigmoid", "softmax"]


class HeadFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Facts of the head. A prompt's vector holds a raw number for each label, in their order."""

    labels: tuple[str, ...]
    activation: Activation
    """Function that makes the answer of the raw numbers, unless a request says otherwise."""
    is_of_tokens: bool = False
    """They are logits of tokens: a prompt is what the model was to answer, with all marks that it knows."""
    by_token: bool = False
    """A prompt has these numbers for each of its tokens, one token's behind the other's."""
    padding: int = -1
    """The numbers are those of a prompt's last token that is not this one; -1: of its last."""


class EmbeddingVector(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The vector of one request of a model that makes them; its `Finish` ("stop", no tokens) is in the same message."""

    number: int
    vector: bytes
    """float32 [vector_size]: pooled and not normalised, or the head's raw numbers; [prompt tokens, vector_size] where
    each token has some."""
