"""Paths that other servers have and this one has not: each is refused by its name, with what to use instead.

Only what the router does not know comes here. The status is 404: clients do not try that again.
"""

from collections.abc import Iterable

from quire.frontend.http.errors import HttpError

_VECTORS = "use /v1/embeddings with an embedding model; /v1/score and /v1/rerank with that or a reranker"
_LABELS = "use /v1/completions with `logprob_token_ids`, or with `guided_choice`"
_FILES = "files are not kept here; `quire run-batch -i FILE -o FILE` runs a file of requests"
_STATE = "conversations are not kept here; use /v1/responses with previous_response_id"
_ADAPTERS = "adapters cannot be loaded into this server"
_WEIGHTS = "weights do not change while a model is served; start the engine on the new ones"
_SLEEP = "this engine does not sleep; stop it with SIGTERM, which drains it"
_CACHE = "the prefix cache is not for callers to change; `cache_salt` of a request keeps its prefixes apart"
_ABORT = "close the connection of a request to abort it, or call Control.Abort over gRPC"
_PAUSE = "this engine does not pause; SIGTERM drains it"
_INFO = "use /v1/models, or /v1/status with the admin key"
_METRICS = "use /metrics, and /v1/status with the admin key"
_TOKENS = "use /inference/v1/generate with token ids, or /v1/completions with a text"
_PARSED = "answers of /v1/chat/completions come parsed: `tool_calls` and `reasoning_content`"
_PROFILE = "use `quire bench`, and /v1/status for the times of every step"
_RESIZE = "the number of devices is fixed at the start: --tensor-parallel-size"
_REPAIR = "workers that die are started again without being asked; see /v1/status"
_SESSIONS = "there are no sessions: equal prefixes are found in the cache by themselves"
_DERENDER = "use /detokenize for the text of token ids"
_MEDIA = "this server makes text only; an image to look at is a part of a chat"

MAX_PATH = 256
"""Characters of a path that are looked at."""
NOT_SERVED = {
    "/v1/audio": _MEDIA,
    "/v1/images": _MEDIA,
    "/v1/videos": _MEDIA,
    "/v1/realtime": "this server has no WebSockets; use /v1/responses with stream",
    "/v1/files": _FILES,
    "/v1/uploads": _FILES,
    "/v1/batches": _FILES,
    "/v1/messages/batches": _FILES,
    "/v1/vector_stores": _FILES,
    "/v1/containers": _FILES,
    "/v1/fine_tuning": "this server does not train; serve the checkpoint that was trained elsewhere",
    "/v1/evals": "this server only generates; run evaluations against /v1/completions",
    "/v1/moderations": "use /classify with a classifier, or /v1/chat/completions with `guided_choice`",
    "/v1/assistants": _STATE,
    "/v1/threads": _STATE,
    "/v1/conversations": _STATE,
    "/v1/engines": "use /v1/models",
    "/v1/complete": "use /v1/messages",
    "/v1/organization": "keys and usage are not managed here; see --api-key-file and /metrics",
    "/v1/chat/completions/batch": "send one request per conversation; they run in one batch",
    "/v1/chat/completions/control": _ABORT,
    "/v1/chat/completions/derender": _DERENDER,
    "/v1/completions/derender": _DERENDER,
    "/v2/embed": _VECTORS,
    "/v1/embed": _VECTORS,
    "/embed": _VECTORS,
    "/embedding": _VECTORS,
    "/encode": _VECTORS,
    "/v1/encode": "use /tokenize",
    "/generative_scoring": _LABELS,
    "/v1/decisions": _LABELS,
    "/v1/systemone": _LABELS,
    "/get_ppl": "use /v1/completions with echo, logprobs 0 and max_tokens 0",
    "/cohere/v2/chat": "use /v1/chat/completions",
    "/v2/chat": "use /v1/chat/completions",
    "/generate": _TOKENS,
    "/generate_stream": _TOKENS,
    "/invocations": "use the route itself: /v1/chat/completions or /v1/completions",
    "/vertex": "use the route itself: /v1/chat/completions or /v1/completions",
    "/vertex_generate": "use the route itself: /v1/chat/completions or /v1/completions",
    "/chat_tokenize": "use /tokenize with messages",
    "/tokenizer_info": "use /tokenize, /detokenize and /apply-template",
    "/info": _INFO,
    "/server_info": _INFO,
    "/get_server_info": _INFO,
    "/model_info": _INFO,
    "/get_model_info": _INFO,
    "/v1/loads": "use /load, or /v1/status with the admin key",
    "/health_generate": "use /health, which is 503 when the engine makes no progress",
    "/v2/health": "use /health, or /ready",
    "/v2/models": "the protocol of KServe is not spoken here; use /v1/models and /v1/completions",
    "/prometheus/metrics": _METRICS,
    "/perf_metrics": _METRICS,
    "/kv_cache_events": "cached blocks are not announced",
    "/kv_event_sources": "cached blocks are not announced",
    "/v1/kv_cache_hints": _CACHE,
    "/reset_prefix_cache": _CACHE,
    "/reset_mm_cache": _CACHE,
    "/flush_cache": _CACHE,
    "/hicache": _CACHE,
    "/release_kv_cache_memory": _SLEEP,
    "/release_memory": _SLEEP,
    "/resume_memory": _SLEEP,
    "/release_memory_occupation": _SLEEP,
    "/resume_memory_occupation": _SLEEP,
    "/sleep": _SLEEP,
    "/wake_up": _SLEEP,
    "/wakeup": _SLEEP,
    "/is_sleeping": _SLEEP,
    "/pause": _PAUSE,
    "/resume": _PAUSE,
    "/is_paused": _PAUSE,
    "/pause_generation": _PAUSE,
    "/continue_generation": _PAUSE,
    "/terminate": _PAUSE,
    "/abort_request": _ABORT,
    "/abort_requests": _ABORT,
    "/v1/load_lora_adapter": _ADAPTERS,
    "/v1/unload_lora_adapter": _ADAPTERS,
    "/load_lora_adapter": _ADAPTERS,
    "/unload_lora_adapter": _ADAPTERS,
    "/lora-adapters": _ADAPTERS,
    "/update_weights": _WEIGHTS,
    "/update_weights_from_disk": _WEIGHTS,
    "/collective_rpc": "workers take no calls from outside",
    "/start_profile": _PROFILE,
    "/stop_profile": _PROFILE,
    "/configure_logging": "logging is set at the start; see `quire serve --help`",
    "/set_trace_level": "tracing is set at the start; see `quire serve --help`",
    "/freeze_gc": "there is nothing to call: garbage is collected beside the requests",
    "/slow_down": "load is bounded by --max-num-queued-reqs",
    "/scale_elastic_ep": _RESIZE,
    "/pd_role_switch": "prompts and outputs are computed in one engine",
    "/distserve": "prompts and outputs are computed in one engine",
    "/fault_tolerance": _REPAIR,
    "/open_session": _SESSIONS,
    "/close_session": _SESSIONS,
    "/parse_function_call": _PARSED,
    "/separate_reasoning": _PARSED,
}
"""Path -> why, and what to use. What lies below a path is refused like it."""


def not_found(path: str, served: Iterable[str]) -> HttpError:
    """The refusal of a path without a route. `served`: the paths of routes, one of which may have been meant."""
    head = path[:MAX_PATH].rstrip("/")
    for name in (head, f"/v1{head}"):
        while name:
            if name in NOT_SERVED:
                return HttpError(404, "not_found", f"{name} is not served here: {NOT_SERVED[name]}")
            name = name.rpartition("/")[0]
    meant = max((one for one in served if len(one) > 1 and head.endswith(one)), key=len, default="")
    hint = f"did you mean {meant}?" if meant else "GET /openapi.json lists all paths"
    return HttpError(404, "not_found", f"no such path; {hint}")
