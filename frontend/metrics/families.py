"""The table of a frontend's metric families: name, kind, labels and help of each."""

from typing import NamedTuple

from quire.frontend.metrics.buckets import COUNTS, DURATION_SECONDS, INTERVAL_SECONDS, TOKENS, WORK_SECONDS
from quire.proto.metrics.families import Kind


class Family(NamedTuple):
    """A metric family: all series of one name."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


def _histogram(help: str, bounds: tuple[float, ...]) -> Family:
    return Family("histogram", help, (), bounds)


FAMILIES: dict[str, Family] = {
    # ---- one request
    "time_to_first_token_seconds": _histogram("From a request's arrival to its first token.", DURATION_SECONDS),
    "inter_token_latency_seconds": _histogram("Between two tokens of one output, on arrival.", INTERVAL_SECONDS),
    "time_per_output_token_seconds": _histogram(
        "Decode time of one output over its tokens after the first.", INTERVAL_SECONDS
    ),
    "request_duration_seconds": _histogram("From a request's arrival to the end of its last output.", DURATION_SECONDS),
    "request_queue_seconds": _histogram("What one output waited in the scheduler's queue.", DURATION_SECONDS),
    "request_prefill_seconds": _histogram("From admission to the first token of one output.", DURATION_SECONDS),
    "request_decode_seconds": _histogram("From the first to the last token of one output.", DURATION_SECONDS),
    "request_inference_seconds": _histogram("Prefill and decode of one output together.", DURATION_SECONDS),
    "request_prompt_tokens": _histogram("Prompt tokens of one request.", TOKENS),
    "request_cached_tokens": _histogram("Prompt tokens of one output that were there when it began.", TOKENS),
    "request_generation_tokens": _histogram("Tokens of one output.", TOKENS),
    "request_max_generation_tokens": _histogram("Tokens of the longest output of one request.", TOKENS),
    "request_params_n": _histogram("Outputs asked for by one request.", COUNTS),
    "request_params_max_tokens": _histogram("Tokens one request may generate per output.", TOKENS),
    # ---- the frontend's own work
    "arrival_to_submit_seconds": _histogram(
        "From a request's arrival to its submission to the scheduler: checks, template, tokens.", WORK_SECONDS
    ),
    "tokenize_seconds": _histogram("Tokenisation of one prompt, waiting for a thread included.", WORK_SECONDS),
    "render_seconds": _histogram(
        "Rendering of one chat by its template, waiting for the process included.", WORK_SECONDS
    ),
    "media_load_seconds": _histogram(
        "The images of one prompt: their bytes, their pixels, waiting for processes included.", WORK_SECONDS
    ),
    "media_read_seconds": _histogram("The bytes of one image: base64, a file, or the web.", WORK_SECONDS),
    "media_decode_seconds": _histogram("The pixels of one image or video, in a process of its own.", WORK_SECONDS),
    "grammar_compile_seconds": _histogram("Compilation of one grammar, waiting included.", WORK_SECONDS),
    # ---- totals
    "requests_total": Family("counter", "Requests that arrived, by door.", ("door",)),
    "request_finishes_total": Family(
        "counter", "Outputs that ended, by reason; abort: the client left too.", ("reason",)
    ),
    "request_rejections_total": Family("counter", "Requests refused before they ran, by reason word.", ("reason",)),
    "early_refusals_total": Family("counter", "Requests refused unread while the scheduler's queue was full."),
    "request_failures_total": Family("counter", "Requests that failed once accepted, by reason word.", ("reason",)),
    "client_aborts_total": Family("counter", "Requests given up: the client left, or an input beside it failed."),
    "slow_readers_total": Family("counter", "Requests ended because their client did not read."),
    "request_resumes_total": Family("counter", "Requests submitted again after the scheduler was lost."),
    "prompt_tokens_total": Family("counter", "Prompt tokens of requests that got a first token or a vector."),
    "prompt_tokens_cached_total": Family("counter", "Prompt tokens found in the prefix cache, of requests that ended."),
    "generation_tokens_total": Family("counter", "Tokens received from the scheduler."),
    "images_total": Family("counter", "Images of prompts that were decoded, or found."),
    "videos_total": Family("counter", "Videos of prompts that were decoded, or found."),
    "media_store_queries_total": Family("counter", "Images and videos that were looked for among those kept."),
    "media_store_hits_total": Family("counter", "Of these, those that were found, and not decoded again."),
    "media_store_evictions_total": Family("counter", "Kept images, and parts of videos, that made room for others."),
    "embeddings_total": Family("counter", "Vectors given to clients."),
    "grammar_compiles_total": Family("counter", "Grammars asked for, by outcome.", ("outcome",)),
    "http_responses_total": Family("counter", "HTTP answers, by route and status.", ("route", "method", "code")),
    "ignored_fields_total": Family("counter", "Fields of HTTP requests that were dropped and named in the answer."),
    "grpc_responses_total": Family("counter", "gRPC answers, by method and status.", ("method", "code")),
    "grpc_calls_refused_total": Family("counter", "gRPC calls refused because too many were open."),
    "connections_closed_total": Family("counter", "Silent connections closed to make room, by door.", ("door",)),
    "bodies_refused_total": Family(
        "counter", "Bodies that found no room, or came too slowly while others wanted it.", ("outcome",)
    ),
    "trace_spans_dropped_total": Family("counter", "Spans that did not reach the trace collector."),
    "frontend_cpu_seconds_total": Family("counter", "Processor time of a frontend.", ("frontend",)),
    # ---- now
    "requests_in_flight": Family("gauge", "Requests between arrival and their last event."),
    "connections": Family("gauge", "Open connections, by door.", ("door",)),
    "connections_limit": Family("gauge", "Connections that may be open, by door.", ("door",)),
    "grpc_calls": Family("gauge", "Open gRPC calls."),
    "media_store_bytes": Family("gauge", "Bytes of images that are kept in files."),
    "media_store_used_bytes": Family("gauge", "Of these, bytes to which open requests refer."),
    "preparing_bytes": Family("gauge", "Bytes of bodies that are being read and prepared."),
    "frontend_memory_bytes": Family("gauge", "Resident memory of a frontend.", ("frontend",)),
    # ---- made when the page is: not a frontend's own
    "frontends": Family("gauge", "Frontends that live."),
    "scheduler_up": Family("gauge", "1 when the scheduler answers."),
    "engine_ready": Family("gauge", "1 when the engine takes requests and its workers run."),
    "model_info": Family(
        "gauge",
        "1; what is served.",
        ("model_name", "version", "architecture", "dtype", "device", "revision", "task", "block_size", "num_blocks"),
    ),
}
"""Name without the prefix `quire_` -> family; a counter's ends in `_total`.

The scheduler's families stand in `quire.proto.metrics.families`.
"""
