"""The samples under vLLM's names, for dashboards, alerts and gateways that know only those."""

import time
from collections.abc import Iterable, Iterator

from quire.frontend.telemetry.exposition import Meaning
from quire.proto.messages.introspection import Distribution, Figure
from quire.proto.messages.requests import ModelFacts
from quire.proto.metrics.rates import Rates

PREFIXES = ("vllm:", "vllm_")
"""The second is what encoders and collectors without colons make of the first, and what guides behind them say."""

SAME: dict[str, tuple[str, str]] = {
    "num_requests_running": ("requests_running", "Number of requests in model execution batches."),
    "num_requests_waiting": ("requests_waiting", "Number of requests waiting to be processed."),
    "kv_cache_usage_perc": ("kv_usage_ratio", "KV-cache usage; 1 is 100 percent."),
    "prefix_cache_queries_total": ("prefix_queries_tokens_total", "Prefix cache queries, in tokens."),
    "prefix_cache_hits_total": ("prefix_hits_tokens_total", "Prefix cache hits, in tokens."),
    "num_preemptions_total": ("preemptions_total", "Preemptions by the engine."),
    "prompt_tokens_total": ("prompt_tokens_total", "Prefill tokens processed."),
    "prompt_tokens_cached_total": ("prompt_tokens_cached_total", "Prompt tokens served from the cache."),
    "mm_cache_queries_total": ("media_store_queries_total", "Multi-modal cache queries, in items."),
    "mm_cache_hits_total": ("media_store_hits_total", "Multi-modal cache hits, in items."),
    "generation_tokens_total": ("generation_tokens_total", "Generation tokens processed."),
    "time_to_first_token_seconds": ("time_to_first_token_seconds", "Time to first token in seconds."),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "Inter-token latency in seconds."),
    "request_time_per_output_token_seconds": ("time_per_output_token_seconds", "Mean time per output token."),
    "e2e_request_latency_seconds": ("request_duration_seconds", "End-to-end request latency in seconds."),
    "request_queue_time_seconds": ("request_queue_seconds", "Time spent in the waiting phase."),
    "request_prefill_time_seconds": ("request_prefill_seconds", "Time spent in the prefill phase."),
    "request_decode_time_seconds": ("request_decode_seconds", "Time spent in the decode phase."),
    "request_inference_time_seconds": ("request_inference_seconds", "Time spent in the running phase."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prefill tokens per request."),
    "request_generation_tokens": ("request_generation_tokens", "Generation tokens per request."),
    "request_max_num_generation_tokens": ("request_max_generation_tokens", "Longest output of a request."),
    "request_params_n": ("request_params_n", "The n request parameter."),
    "request_params_max_tokens": ("request_params_max_tokens", "The max_tokens request parameter."),
    "iteration_tokens_total": ("step_tokens", "Tokens per engine step."),
}
"""vLLM's name without its prefix -> (our name, help)."""

OLD: dict[str, tuple[str, str]] = {
    "gpu_cache_usage_perc": ("kv_usage_ratio", "Old name of vllm:kv_cache_usage_perc."),
    "gpu_prefix_cache_queries_total": ("prefix_queries_tokens_total", "Old name of vllm:prefix_cache_queries_total."),
    "gpu_prefix_cache_hits_total": ("prefix_hits_tokens_total", "Old name of vllm:prefix_cache_hits_total."),
    "time_per_output_token_seconds": (
        "inter_token_latency_seconds",
        "Old name of vllm:inter_token_latency_seconds.",
    ),
}
"""Names of earlier versions, which guides and dashboards still use -> (our name, help)."""
RATES: dict[str, tuple[str, str]] = {
    "avg_prompt_throughput_toks_per_s": (
        "prefill_tokens_per_second",
        "Old: prefill tokens per second, of the last 5 s; better a rate of vllm:prompt_tokens_total.",
    ),
    "avg_generation_throughput_toks_per_s": (
        "decode_tokens_per_second",
        "Old: generation tokens per second, of the last 5 s; better a rate of vllm:generation_tokens_total.",
    ),
}
"""More of these, which are computed from the newest steps -> (field of `Rates`, help)."""

NOTHING: dict[str, str] = {
    "cpu_cache_usage_perc": "Old: usage of a swap space; always 0, nothing is swapped.",
    "num_requests_swapped": "Old: requests in a swap space; always 0, nothing is swapped.",
}
"""More of these, of what is not here -> help."""

FINISHED_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "deadline": "abort", "error": "error"}
"""Our finish reason -> vLLM's."""

HISTOGRAMS = {name for name in SAME | OLD if name.startswith(("request_", "time_", "inter_", "e2e_", "iteration_"))}

MEANINGS: dict[str, Meaning] = {
    **{
        name: ("histogram" if name in HISTOGRAMS else "counter" if name.endswith("_total") else "gauge", help)
        for name, (_, help) in (SAME | OLD | RATES).items()
    },
    **{name: ("gauge", help) for name, help in NOTHING.items()},
    "request_success_total": ("counter", "Outputs that ended, by reason; deadlines are aborts."),
    "admission_rejections_total": ("counter", "Requests refused, by reason."),
    "cache_config_info": ("gauge", "1; the KV cache's shape."),
    "lora_requests_info": ("gauge", "Adapters that run and wait; the value is the time of writing."),
}


def aliases(
    samples: Iterable[Figure],
    distributions: Iterable[Distribution],
    facts: ModelFacts | None,
    model_name: str,
    now: Rates | None,
) -> tuple[list[Figure], list[Distribution]]:
    """The samples under vLLM's names, labelled `model_name` and `engine`; histograms keep our finer buckets.

    `now`: None where the scheduler does not answer.
    """
    base = (("engine", "0"), ("model_name", model_name))
    by_source: dict[str, list[str]] = {}
    for name, (source, _) in (SAME | OLD).items():
        by_source.setdefault(source, []).append(name)
    made = [
        Figure(name, sample.value, base)
        for sample in samples
        if not sample.labels
        for name in by_source.get(sample.name, ())
    ]
    if now is not None:
        made += [Figure(name, getattr(now, field), base) for name, (field, _) in RATES.items()]
        made += [Figure(name, 0.0, base) for name in NOTHING]
    made += _by_reason("request_success_total", "finished_reason", "request_finishes_total", samples, base)
    made += _by_reason("admission_rejections_total", "reason", "request_rejections_total", samples, base)
    if facts is not None:
        shape = (("block_size", str(facts.block_size)), ("num_gpu_blocks", str(facts.num_blocks)))
        made.append(Figure("cache_config_info", 1.0, (*shape, *base)))
        adapters = (
            ("max_lora", str(len(facts.adapters))),
            ("running_lora_adapters", ""),
            ("waiting_lora_adapters", ""),
        )
        made.append(Figure("lora_requests_info", time.time(), (*adapters, *base)))
    histograms = [
        Distribution(name, one.bounds, one.counts, one.sum, base)
        for one in distributions
        for name in by_source.get(one.name, ())
    ]
    return made, histograms


def _by_reason(
    name: str, label: str, source: str, samples: Iterable[Figure], base: tuple[tuple[str, str], ...]
) -> Iterator[Figure]:
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name == source:
            ours = dict(sample.labels)["reason"]
            reason = FINISHED_REASONS[ours] if label == "finished_reason" else ours.lower()
            sums[reason] = sums.get(reason, 0.0) + sample.value
    for reason, value in sums.items():
        yield Figure(name, value, ((label, reason), *base))
