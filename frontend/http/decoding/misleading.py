"""Fields that change the answer of other servers: to drop one of them would answer another question.

Those that a route declares are refused there. A field that says more of a sampler (`mirostat_tau`) is none: it changes
nothing where the sampler is off, and who turns that on is refused.
"""

from collections.abc import Callable
from typing import Final

CHATS = "send it with the messages of /v1/chat/completions or the input of /v1/responses"
KWARGS = "set it in chat_template_kwargs"
GRAMMAR = "send structured_outputs with a grammar"
NO_ADAPTERS = "this server has no adapters; remove it"
WINDOW = "penalties look at the whole context; remove it"
ELSEWHERE: Final[dict[str, str]] = dict.fromkeys(
    (
        "adaptive_target", "beam_width", "cfg_scale", "constraints", "custom_logit_processor", "custom_params",
        "decoder_input_details", "diversity_penalty", "dry_multiplier", "dynamic_temperature", "dynatemp_range",
        "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
        "exponential_decay_length_penalty", "force_words_ids", "forced_decoder_ids", "guidance_scale", "image_data",
        "image_url", "input_embeds", "input_ids", "instruction_template", "max_temp", "min_characters", "min_keep",
        "min_temp", "mirostat", "mirostat_mode", "multi_modal_data", "negative_prompt", "no_repeat_ngram_size",
        "num_beam_groups", "num_beams", "penalty_alpha", "return_hidden_states", "safe_prompt", "sampler_order",
        "sampler_priority", "samplers", "sampling_order", "session_params", "smoothing_factor", "stop_regex",
        "structural_tag", "temperature_last", "tfs", "tfs_z", "token_healing", "top_a", "top_n_sigma", "typ_p",
        "typical", "typical_p", "video_data", "watermark", "xtc_probability",
    ),
    "remove it",
) | {
    **dict.fromkeys(("lora", "lora_id", "lora_name", "lora_path", "lora_request"), NO_ADAPTERS),
    **dict.fromkeys(("penalty_last_n", "penalty_range", "repeat_last_n", "repetition_penalty_range"), WINDOW),
    "add_bos_token": "send add_special_tokens",
    "bad_words_ids": "send bad_words",
    "ban_eos_token": "send ignore_eos",
    "begin_suppress_tokens": "send logit_bias",
    "custom_token_bans": "send logit_bias",
    "do_sample": "send temperature 0",
    "ebnf": GRAMMAR,
    "enable_thinking": KWARGS,
    "force_json_schema": "send response_format",
    "grammar": GRAMMAR,
    "grammar_string": GRAMMAR,
    "images": "send them as parts of a message",
    "json_schema": "send response_format",
    "max_length": "send max_tokens, or truncate_prompt_tokens",
    "max_new_tokens": "send max_tokens",
    "max_time": "send timeout_seconds",
    "media_io_kwargs": CHATS,
    "min_length": "send min_tokens",
    "min_new_tokens": "send min_tokens",
    "mm_processor_kwargs": CHATS,
    "no_stop_trim": "send include_stop_str_in_output",
    "prompt_truncate_len": "send truncate_prompt_tokens",
    "random_seed": "send seed",
    "regex": "send structured_outputs with a regex",
    "rep_pen": "send repetition_penalty",
    "response_schema": "send response_format",
    "return_full_text": "send echo, of a completion",
    "separate_reasoning": "send include_reasoning, of a chat",
    "stop_sequences": "send stop",
    "stopping_strings": "send stop",
    "suffix": "send it with a prompt of /v1/completions",
    "suppress_tokens": "send logit_bias",
    "system": "send it as a message of the role system",
    "thinking": f"{KWARGS} as enable_thinking, of a chat",
    "thinking_budget": "send max_tokens",
    "top_n_tokens": "send logprobs",
}  # fmt: skip
"""Field -> what to do here."""

NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    **dict.fromkeys(
        (
            "adaptive_target",
            "cfg_scale",
            "diversity_penalty",
            "dry_multiplier",
            "dynatemp_range",
            "encoder_no_repeat_ngram_size",
            "epsilon_cutoff",
            "eta_cutoff",
            "min_characters",
            "min_keep",
            "min_length",
            "min_new_tokens",
            "mirostat",
            "mirostat_mode",
            "no_repeat_ngram_size",
            "penalty_alpha",
            "smoothing_factor",
            "top_a",
            "top_n_tokens",
            "xtc_probability",
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            "ban_eos_token",
            "decoder_input_details",
            "dynamic_temperature",
            "no_stop_trim",
            "return_full_text",
            "return_hidden_states",
            "safe_prompt",
            "temperature_last",
            "token_healing",
            "watermark",
        ),
        (False,),
    ),
    **dict.fromkeys(("beam_width", "num_beam_groups", "num_beams", "encoder_repetition_penalty", "rep_pen"), (1,)),
    **dict.fromkeys(("tfs", "tfs_z", "typ_p", "typical", "typical_p"), (0, 1)),
    **dict.fromkeys(("add_bos_token", "do_sample", "separate_reasoning"), (True,)),
    "guidance_scale": (1,),
    "top_n_sigma": (-1, 0),
}
"""Values by which a field changes nothing: clients send all that they know. So do empty ones, and see below."""
TWINS: Final[dict[str, tuple[str, ...]]] = {
    "max_new_tokens": ("max_tokens", "max_completion_tokens", "n_predict"),
    "max_time": ("timeout_seconds",),
    "min_length": ("min_tokens",),
    "min_new_tokens": ("min_tokens",),
    "random_seed": ("seed",),
    "rep_pen": ("repetition_penalty", "repeat_penalty"),
    "stop_sequences": ("stop",),
    "stopping_strings": ("stop",),
}
"""Field -> its names here: clients of several servers send a value under all names."""
PENALTIES: Final = {"repetition_penalty": 1, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Those of which a field says how far they look back -> the value that is none."""
WHOLE: Final = -1
"""The whole context."""


def changes_nothing(name: str, value: object, other: Callable[[str], object]) -> bool:
    """True where dropping the field leaves the answer as it is. `other(NAME)`: a field beside it, None if unset."""
    if value in ("", [], *NEUTRAL.get(name, ())) or any(other(twin) == value for twin in TWINS.get(name, ())):
        return True
    if ELSEWHERE[name] == WINDOW:
        return value == WHOLE or all(other(penalty) in (None, none) for penalty, none in PENALTIES.items())
    return name == "do_sample" and other("temperature") == 0
