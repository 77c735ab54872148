"""The fields that requests of llama-server's /completion and /infill share, and what they mean to the pipeline."""

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.frontend.errors import not_supported, too_many_entries
from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.fields.sampling import SamplingFields
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError

MAX_FIELDS, MAX_PATH = 64, 128
"""Most paths in `response_fields`, and characters of one: they are followed for every piece of a stream."""
NEUTRAL: dict[str, tuple[float, ...]] = {
    "mirostat": (0,),
    "typical_p": (0, 1),
    "tfs_z": (0, 1),
    "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
}
"""Samplers that are not offered -> the values that ask for none: clients send all that they know."""
IGNORED = ("samplers", "n_indent", "repeat_last_n", "t_max_prompt_ms", "t_max_predict_ms")
RANDOM_SEEDS = (-1, (1 << 32) - 1)


class LlamaFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    n_predict: int | None = None
    """0: nothing; the prompt is read for later requests, which find it cached. Less: as many as there is room for."""
    n_probs: int | None = None
    response_fields: list[str] | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    """Ignored: prefixes are cached anyway."""
    id_slot: int | None = None
    """Ignored: every slot finds every cached prefix."""
    n_indent: int | None = None
    repeat_last_n: int | None = None
    """Penalties look at the whole context, as those of Ollama's API."""
    samplers: list[str] | str | None = None
    t_max_prompt_ms: float | None = None
    t_max_predict_ms: float | None = None
    image_data: list[msgspec.Raw] | None = None

    mirostat: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None

    mirostat_tau: msgspec.Raw = msgspec.Raw()
    """This and those below say more of samplers that do nothing."""
    mirostat_eta: msgspec.Raw = msgspec.Raw()
    dynatemp_exponent: msgspec.Raw = msgspec.Raw()
    dry_base: msgspec.Raw = msgspec.Raw()
    dry_allowed_length: msgspec.Raw = msgspec.Raw()
    dry_penalty_last_n: msgspec.Raw = msgspec.Raw()
    dry_sequence_breakers: msgspec.Raw = msgspec.Raw()
    xtc_threshold: msgspec.Raw = msgspec.Raw()

    @property
    def reads_only(self) -> bool:
        """True where no token is wanted: the engine draws one all the same, which is dropped."""
        return 0 in (self.n_predict, self.max_tokens)

    def asked(
        self, prompt: str | Sequence[int], label: str, unset: int | None, most: int, **changes: Any
    ) -> GenerateRequest:
        """The request. `unset`: its tokens where it gives no number; `most`: where that is negative.

        Raises `ParameterError`.
        """
        if self.n is not None and self.n != 1:
            raise ParameterError("n", "must be 1: this route answers one text; send one request for each")
        check_paths(self.response_fields or ())
        for name, allowed in NEUTRAL.items():
            if getattr(self, name) not in (None, *allowed):
                raise not_supported(name)
        if self.image_data:
            raise not_supported("image_data")
        for name in IGNORED:
            if getattr(self, name) is not None:
                note(name)
        wanted = self.max_tokens if self.n_predict is None else self.n_predict
        return self.generate_request(
            prompt,
            request_id=label if self.request_id is None else self.request_id,
            max_tokens=1 if self.reads_only else unset if wanted is None else most if wanted < 0 else wanted,
            seed=None if self.seed in RANDOM_SEEDS else self.seed,
            logprobs=self.n_probs or None,
            return_token_ids=bool(self.return_tokens or self.return_token_ids),
            **changes,
        )

    def names(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's names; see `renamed`."""
        return super().names() | {"max_tokens": "n_predict", "logprobs": "n_probs", "prompt_token_ids": "prompt"}


def check_paths(paths: Sequence[str]) -> None:
    """Raises `ParameterError`."""
    if len(paths) > MAX_FIELDS:
        raise too_many_entries("response_fields", len(paths), MAX_FIELDS)
    for index, path in enumerate(paths):
        if len(path) > MAX_PATH:
            message = f"has {len(path)} characters; at most {MAX_PATH} are allowed"
            raise ParameterError(f"response_fields[{index}]", message)
