"""The one table of `quire serve` options: a field is a flag, a key of the YAML file and a typed value.

Names, meanings and defaults follow vLLM where quire has the same thing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from quire.deploy.flags.sizes import (
    parse_bytes,
    parse_count,
    parse_length,
    parse_names,
    parse_number,
    parse_object,
    parse_port,
    parse_seed,
)
from quire.worker.config import Quantization

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """Properties of a flag that its field's type and default do not say."""

    group: str
    help: str
    metavar: str = ""
    parse: Parse | None = None
    """Text -> value; None: chosen by the field's type."""
    also: tuple[str, ...] = ()
    """Other spellings of the flag."""
    default: str = ""
    """Words for the help text when the default value itself says nothing."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values of other engines that are not served -> why, and what to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """All options of `quire serve`. 0 and "" stand for "decide at the start"."""

    host: Annotated[str, Flag("server", "address to listen on; 0.0.0.0 for every interface")] = "127.0.0.1"
    http_port: Annotated[
        int, Flag("server", "port of the HTTP API; -1: no HTTP", "PORT", parse_port, also=("--port",))
    ] = 8000
    grpc_port: Annotated[int, Flag("server", "port of the gRPC API", "PORT")] = 50051
    frontends: Annotated[
        int, Flag("server", "frontend processes that share the ports", "N", also=("--api-server-count", "-asc"))
    ] = 1
    served_model_name: Annotated[
        tuple[str, ...], Flag("server", "names clients may use; the first is reported", "NAME", default="MODEL")
    ] = ()
    max_body_bytes: Annotated[int, Flag("server", "largest body of one request", "SIZE", parse_bytes)] = 8 << 20
    unknown_fields: Annotated[
        Literal["drop", "refuse"],
        Flag("server", "HTTP fields that are not known: drop and name them in a header, or refuse the request"),
    ] = "drop"
    max_connections: Annotated[
        int,
        Flag(
            "server",
            "open connections of one frontend, both APIs together; idle ones make room",
            "N",
            default="what the limit of open files allows, at most 32768",
        ),
    ] = 0
    max_concurrent_streams: Annotated[
        int, Flag("server", "calls open at once on one gRPC connection; 16 times as many on all", "N")
    ] = 1024
    max_preparing_bytes: Annotated[
        int, Flag("server", "bodies that one frontend reads and prepares at once", "SIZE", parse_bytes)
    ] = 256 << 20
    tokenizer_memory_bytes: Annotated[
        int,
        Flag(
            "server", "memory of a process that tokenizes long texts; a frontend has two at most", "SIZE", parse_bytes
        ),
    ] = 2 << 30
    max_num_queued_reqs: Annotated[int, Flag("server", "waiting requests; more are refused", "N")] = 10_000
    max_num_queued_tokens: Annotated[int, Flag("server", "waiting prompt tokens; more are refused", "N")] = 10_000_000

    api_key_file: Annotated[
        str, Flag("security", "accepted API keys, one per line, besides $QUIRE_API_KEY", "FILE", default="open to all")
    ] = ""
    admin_key_file: Annotated[
        str,
        Flag(
            "security", "the same for aborting, explaining and watching all requests, besides $QUIRE_ADMIN_KEY", "FILE"
        ),
    ] = ""
    ssl_certfile: Annotated[str, Flag("security", "PEM chain; both APIs then speak TLS only", "FILE")] = ""
    ssl_keyfile: Annotated[str, Flag("security", "PEM key of --ssl-certfile", "FILE")] = ""
    ssl_ca_certs: Annotated[
        str, Flag("security", "PEM; clients must show a certificate signed by one of these", "FILE")
    ] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        Flag(
            "security", "names an HTTP Host header may have", "NAME", default="any; on a loopback address only its own"
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Flag("security", "origins whose pages may call the HTTP API, * for any", "ORIGIN", default="none"),
    ] = ()

    task: Annotated[
        Literal["auto", "generate", "embed"], Flag("model", "what the model is asked for; auto: by the checkpoint")
    ] = "auto"
    tokenizer: Annotated[str, Flag("model", "directory of another tokenizer", "DIR", default="the model's")] = ""
    chat_template: Annotated[
        str, Flag("model", "file with another Jinja chat template", "FILE", default="the model's")
    ] = ""
    tool_call_parser: Annotated[
        str, Flag("model", "how the model writes tool calls; auto: by its chat template", "NAME")
    ] = "auto"
    reasoning_parser: Annotated[
        str, Flag("model", "how the model writes its reasoning; auto: by its chat template", "NAME")
    ] = "auto"
    enable_auto_tool_choice: Annotated[bool, Flag("model", "let the model itself decide to call a tool")] = True
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Flag("model", "auto: sampling defaults of the model's generation_config.json; vllm: neutral ones"),
    ] = "auto"
    override_generation_config: Annotated[
        str,
        Flag(
            "model",
            "sampling defaults before the model's: temperature, top_p, top_k, min_p, repetition_penalty",
            "JSON",
            parse_object,
            default="none",
        ),
    ] = ""
    dtype: Annotated[
        Literal["auto", "half", "float16", "bfloat16", "float", "float32"],
        Flag(
            "model",
            "type of weights and activations; auto: the checkpoint's on CUDA (bfloat16 for float32 beside codes); on "
            "CPUs bfloat16 where the checkpoint and the processor (AMX, AVX-512) have it, else float32",
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Flag(
            "model",
            "none: what the checkpoint states, as does its name; int8, fp8: 8-bit weights and activations in linear "
            "layers, int4: 4-bit weights in groups of 128 inputs, made when an unquantized model is loaded",
            also=("-q",),
        ),
    ] = "none"
    load_format: Annotated[
        Literal["auto", "safetensors", "dummy"], Flag("model", "dummy: random weights, for measurements")
    ] = "auto"
    max_model_len: Annotated[
        int,
        Flag(
            "model",
            "tokens of prompt and output together; 32K is 32768, 32k is 32000",
            "N",
            parse_length,
            default="the model's, or what the memory holds",
        ),
    ] = 0
    seed: Annotated[int, Flag("model", "seed of requests without one, and of dummy weights", "N", parse=parse_seed)] = 0

    max_num_seqs: Annotated[int, Flag("scheduling", "sequences that run at once", "N")] = 256
    max_num_batched_tokens: Annotated[
        int, Flag("scheduling", "tokens one step may run", "N", default="2048, or an encoder's context if that is more")
    ] = 0
    scheduling_policy: Annotated[Literal["fcfs", "priority"], Flag("scheduling", "order of waiting requests")] = "fcfs"
    enable_chunked_prefill: Annotated[bool, Flag("scheduling", "split long prompts over several steps")] = True
    max_num_partial_prefills: Annotated[
        int, Flag("scheduling", "prompts of one priority that may be split at once; 1: the oldest alone", "N")
    ] = 4
    max_num_encoder_patches: Annotated[
        int,
        Flag(
            "scheduling",
            "patches of images one step may encode beside its tokens, and one image may have; 1080p has about 8000",
            "N",
        ),
    ] = 8192

    enable_prefix_caching: Annotated[bool, Flag("memory", "reuse the KV of equal prompt beginnings")] = True
    block_size: Annotated[int, Flag("memory", "tokens of one KV block: a power of two up to 256", "N")] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8", "int8_per_token_head"],
        Flag(
            "memory",
            "auto: what the checkpoint states, else the model's; fp8: 8-bit floats (e4m3) and scales, half the memory "
            "of 16-bit ones; on CPUs bfloat16, float16: half of a float32 model's, and int8: 8-bit integers with a "
            "scale for each token and head",
            refused={
                "fp8_e5m2": "it rounds to two bits of mantissa; use fp8, whose scales give it the range",
                "fp8_per_token_head": "8-bit floats have scales of tensors or heads; use fp8, or int8 on a CPU",
            },
        ),
    ] = "auto"
    calculate_kv_scales: Annotated[
        bool, Flag("memory", "make the scales of an fp8 KV cache at the start, from a fixed sequence of tokens")
    ] = False
    gpu_memory_utilization: Annotated[float, Flag("memory", "this engine's own share of device memory", "X")] = 0.92
    kv_cache_memory_bytes: Annotated[
        int, Flag("memory", "KV cache of one rank, like 8GiB", "SIZE", parse_bytes, default="measured")
    ] = 0

    device: Annotated[Literal["auto", "cpu", "cuda"], Flag("device", "where the model runs")] = "auto"
    tensor_parallel_size: Annotated[int, Flag("device", "workers that share every layer", "N", also=("-tp",))] = 1
    enforce_eager: Annotated[bool, Flag("device", "run steps call by call: no CUDA graphs, and on CPUs no tape")] = (
        False
    )
    prefill_body: Annotated[
        Literal["auto", "plain", "specialized"],
        Flag(
            "device", "attention kernel of prefills on Hopper; auto: the specialized one where a run of it is on record"
        ),
    ] = "auto"
    num_threads: Annotated[int, Flag("device", "CPU threads of one worker", "N", default="cores / workers")] = 0
    mlock: Annotated[bool, Flag("device", "weights on the CPU are never written to swap, or the start is refused")] = (
        False
    )

    vllm_metric_names: Annotated[bool, Flag("observing", "/metrics also has vLLM's names")] = False
    log_stats_interval: Annotated[
        float,
        Flag("observing", "time between two lines of figures in the log, while there is traffic; 0: none", "SECONDS"),
    ] = 10.0
    otlp_traces_endpoint: Annotated[
        str, Flag("observing", "traces go there: http(s)://host:4318 or grpc://host:4317", "URL", default="no traces")
    ] = ""

    run_dir: Annotated[
        str, Flag("process", "private directory for sockets and lock", "DIR", default="a new temporary one")
    ] = ""
    startup_timeout: Annotated[float, Flag("process", "time until everything must be ready", "SECONDS")] = 600.0
    drain_timeout: Annotated[float, Flag("process", "time for running requests after SIGTERM", "SECONDS")] = 45.0
    step_timeout: Annotated[
        float, Flag("process", "time until workers that leave a step unanswered are replaced", "SECONDS")
    ] = 300.0
    max_restarts: Annotated[int, Flag("process", "restarts of a dead process per restart window", "N")] = 3
    restart_window: Annotated[float, Flag("process", "time in which --max-restarts are counted", "SECONDS")] = 300.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Flag("process", "log level of every process")
    ] = "info"


@dataclass(frozen=True, slots=True)
class Spec:
    """One option, ready for a parser of command lines or of YAML."""

    field: str
    flag: Flag
    kind: Literal["switch", "choice", "names", "value"]
    default: Any
    parse: Parse
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`max-model-len` for the field `max_model_len`."""
        return self.field.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """Every long spelling, without dashes in front: keys of the YAML file."""
        return (self.name, *(also[2:] for also in self.flag.also if also.startswith("--")))

    @property
    def default_text(self) -> str:
        """The default as a person reads it; empty where there is nothing to say."""
        if self.flag.default:
            return self.flag.default
        if self.kind == "switch":
            return "on" if self.default else "off"
        return "" if self.default == () else str(self.default)


_PARSE_BY_TYPE: dict[Any, Parse] = {int: parse_count, float: parse_number, str: str}


def specs() -> tuple[Spec, ...]:
    """The table, in the order of the fields."""
    hints = get_type_hints(ServeOptions, include_extras=True)
    return tuple(_spec(field.name, field.default, *get_args(hints[field.name])) for field in fields(ServeOptions))


def _served(refused: Mapping[str, str], text: str) -> str:
    """Raises ValueError for a value that is known and not served."""
    if text in refused:
        raise ValueError(f"{text} is not served: {refused[text]}")
    return text


def _spec(name: str, default: object, annotation: Any, flag: Flag) -> Spec:
    if annotation is bool:
        return Spec(name, flag, "switch", default, str)
    if get_origin(annotation) is Literal:
        return Spec(name, flag, "choice", default, partial(_served, flag.refused), get_args(annotation))
    if get_origin(annotation) is tuple:
        return Spec(name, flag, "names", default, parse_names)
    return Spec(name, flag, "value", default, flag.parse or _PARSE_BY_TYPE[annotation])
