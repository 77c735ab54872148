"""Sampling parameters of every kind: each stage of the sampler is used by one of them."""

import models

from quire.proto.messages.params import SamplingParams, Structured

LETTERS = frozenset(models.byte_token(letter) for letter in "ab")
"""What the grammar below allows."""


def _params(**options: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.9, "seed": 5, "max_tokens": 10_000, "ignore_eos": True, **options})


OPTIONS = {
    "greedy": _params(temperature=0.0),
    "temperature": _params(),
    "top_p, top_k, min_p": _params(top_p=0.9, top_k=40, min_p=0.02),
    "penalties": _params(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5),
    "logit_bias": _params(logit_bias=((7, 5.0), (9, -100.0))),
    "allowed_token_ids": _params(allowed_token_ids=tuple(range(10, 400, 3))),
    "bad_words": _params(bad_words=((5,), (7, 9))),
    "min_tokens, stop_token_ids": _params(min_tokens=20, stop_token_ids=(3, 4)),
    "logprobs": _params(logprobs=5, logprob_token_ids=(1, 2, 3)),
    "logprobs, greedy": _params(temperature=0.0, logprobs=5),
    "prompt_logprobs": _params(prompt_logprobs=3),
    "grammar": _params(structured=Structured("regex", "[ab]{40}"), ignore_eos=False),
    "grammar, allowed_token_ids, penalties": _params(
        structured=Structured("regex", "[ab]{40}"), ignore_eos=False, allowed_token_ids=tuple(range(300)),
        repetition_penalty=1.3,
    ),
}  # fmt: skip
