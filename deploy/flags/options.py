"""The one table of `quire serve` options: a field is a flag, a key of the YAML file and a typed value.

Names, meanings and defaults follow vLLM where quire has the same thing.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from quire.deploy.flags.flag import Flag
from quire.deploy.flags.media_limits import parse_media_limits
from quire.deploy.flags.server_options import ServerOptions
from quire.deploy.flags.sizes import parse_bytes, parse_length, parse_object, parse_seed
from quire.worker.config import ModelImpl, Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(ServerOptions):
    """All options of `quire serve`. 0 and "" stand for "decide at the start"."""

    task: Annotated[
        Literal["auto", "generate", "pooling", "embed", "classify", "score", "reward"],
        Flag("model", "what the model is asked for; auto: by the checkpoint; pooling: any of those behind it"),
    ] = "auto"
    hf_overrides: Annotated[
        str,
        Flag("model", "fields put into config.json", "JSON", parse_object, ("--json-model-override-args",), "none"),
    ] = ""
    tokenizer: Annotated[str, Flag("model", "directory of another tokenizer", "DIR", default="the model's")] = ""
    chat_template: Annotated[
        str, Flag("model", "file with another Jinja chat template", "FILE", default="the model's")
    ] = ""
    tool_call_parser: Annotated[
        str, Flag("model", "how the model writes tool calls; auto: by its chat template; off: not looked for", "NAME")
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Flag("model", "how the model writes its reasoning; auto: by its chat template; off: left in the text", "NAME"),
    ] = "auto"
    enable_auto_tool_choice: Annotated[bool, Flag("model", "let the model itself decide to call a tool")] = True
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Flag("model", "auto: sampling defaults of the model's generation_config.json or GGUF file; vllm: neutral ones"),
    ] = "auto"
    override_generation_config: Annotated[
        str,
        Flag(
            "model",
            "defaults before the model's: temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens",
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
    model_impl: Annotated[ModelImpl, Flag("model", "auto: modules of transformers for what quire has not")] = "auto"
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
    language_model_only: Annotated[
        bool, Flag("model", "text alone, of a model that also reads images: its tower is not loaded")
    ] = False
    seed: Annotated[int, Flag("model", "seed of requests without one, and of dummy weights", "N", parse=parse_seed)] = 0

    limit_mm_per_prompt: Annotated[
        str,
        Flag(
            "images",
            "most images and videos of one prompt: image=8,video=1, or JSON, whose audio and sizes change nothing",
            "LIMITS",
            parse_media_limits,
            default="999",
        ),
    ] = ""
    mm_processor_kwargs: Annotated[
        str,
        Flag(
            "images",
            "bounds of the resized image before the model's: min_pixels, max_pixels, or size with shortest_edge and "
            "longest_edge, which count pixels, too; of Gemma 4 max_soft_tokens; of videos also fps or num_frames",
            "JSON",
            parse_object,
            default="the model's",
        ),
    ] = ""
    media_io_kwargs: Annotated[
        str,
        Flag("images", 'frames read: {"video": {"fps": 1}} or num_frames', "JSON", parse_object, default="the model's"),
    ] = ""
    media_processes: Annotated[int, Flag("images", "processes of one frontend that decode images and videos", "N")] = 2
    max_image_pixels: Annotated[int, Flag("images", "pixels of an image as it comes; larger ones are refused", "N")] = (
        64 << 20
    )
    media_store_bytes: Annotated[
        int, Flag("images", "decoded images that one frontend keeps in --run-dir", "SIZE", parse_bytes)
    ] = 1 << 30
    allowed_local_media_path: Annotated[
        str, Flag("images", "folder from which requests may name files, as file:// URLs", "DIR", default="none")
    ] = ""
    allowed_media_domains: Annotated[
        tuple[str, ...],
        Flag(
            "images",
            "hosts from which images and videos are fetched: NAME, *.NAME or NAME:PORT",
            "HOST",
            default="none",
        ),
    ] = ()

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
            "patches of images one step may encode; a larger image has a step alone, and 1080p has some 8000",
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

    mm_encoder_cache_bytes: Annotated[
        int,
        Flag(
            "memory",
            "encoded images that one rank keeps, like 256MiB",
            "SIZE",
            parse_bytes,
            default="what four steps may encode, or the model's largest image",
        ),
    ] = 0

    device: Annotated[Literal["auto", "cpu", "cuda"], Flag("device", "where the model runs")] = "auto"
    tensor_parallel_size: Annotated[int, Flag("device", "workers that share every layer", "N", also=("-tp",))] = 1
    mm_encoder_tp_mode: Annotated[
        Literal["data", "weights"], Flag("device", "workers have a tower each and images dealt to them, or share one")
    ] = "data"
    enable_expert_parallel: Annotated[bool, Flag("device", "deal whole experts to the workers", also=("-ep",))] = False
    enforce_eager: Annotated[bool, Flag("device", "run steps call by call: no CUDA graphs, no tapes on CPUs")] = False
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
