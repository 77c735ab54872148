"""Options to the frozen configurations of the three processes: the only file that knows all of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from quire.deploy.flags.arguments import UsageError, near
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.spec import specs
from quire.deploy.model_path import DEFAULT_STEP_TOKENS, Model, step_tokens
from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.rundir import RunDir
from quire.frontend.config import TEXT_BODY_BYTES, FrontendConfig, SamplingOverrides
from quire.proto.process.flags import in_flags
from quire.scheduler.config import SchedulerConfig
from quire.worker.config import Dtype, KVDtype, WorkerConfig

FRONTENDS_SOCKET = "frontends"
WORKERS_SOCKET = "workers"
FRAMES = ("fps", "num_frames")
"""Settings of a video that --media-io-kwargs has; one excludes the other."""
NO_LIMIT = -1
"""Value by which vLLM's users leave a setting unset."""

RENAMED: Final = {
    "world_size": "tensor_parallel_size",
    "step_timeout_seconds": "step_timeout",
    "startup_seconds": "startup_timeout",
    "drain_seconds": "drain_timeout",
    "keep_alive_seconds": "http_keep_alive",
    "max_receive_bytes": "max_body_bytes",
    "encoder_memory_bytes": "tokenizer_memory_bytes",
    "served_model_names": "served_model_name",
    "tls_cert_file": "ssl_certfile",
    "tls_key_file": "ssl_keyfile",
    "tls_client_ca_file": "ssl_ca_certs",
    "otlp_endpoint": "otlp_traces_endpoint",
    "use_generation_config": "generation_config",
}
"""Field of a process's configuration -> option, where their names differ. Equal names are the same thing."""
FLAGS: Final = {spec.field: f"--{spec.name}" for spec in specs()}
FLAGS.update({field: FLAGS[option] for field, option in RENAMED.items()})
"""Field or option -> the flag that sets it, for messages."""

KV_DTYPES: Final[dict[str, KVDtype]] = {"fp8_e4m3": "fp8", "int8_per_token_head": "int8"}
_DTYPES: Final[dict[str, Dtype]] = {"half": "float16", "float": "float32"}


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    """All configurations of one engine. Printed once at the start."""

    scheduler: SchedulerConfig
    worker: WorkerConfig
    frontend: FrontendConfig
    """Configuration of frontend 0; the others differ in `index` and `ready_file`."""
    num_frontends: int
    timers: Timers


def compose(options: ServeOptions, model: Model, run_dir: RunDir) -> Composed:
    """Raises `UsageError` when a value is out of range, naming its flag."""
    _check_counts(options)
    frontends_address = run_dir.address(FRONTENDS_SOCKET)
    workers_address = run_dir.address(WORKERS_SOCKET)
    try:
        return Composed(
            timers=_timers(options),
            scheduler=_scheduler(options, model, frontends_address, workers_address),
            worker=_worker(options, model, workers_address, str(run_dir.path)),
            frontend=_frontend(options, model, frontends_address, str(run_dir.path)),
            num_frontends=options.frontends,
        )
    except ValueError as error:
        raise UsageError(in_flags(str(error), FLAGS)) from error


def faults(options: ServeOptions, model: Model) -> tuple[list[str], ServeOptions]:
    """All refusals of the options, and the options without what is refused."""
    parts: tuple[Callable[[ServeOptions], object], ...] = (
        _check_counts,
        _timers,
        lambda options: _scheduler(options, model, "", ""),
        lambda options: _frontend(options, model, "not known", ""),
        lambda options: inspected(options, str(model.directory)),
    )
    found: list[str] = []
    for part in parts:
        for _ in fields(options):  # each time without the field that was refused
            try:
                part(options)
                break
            except ValueError as error:
                found.append(in_flags(str(error), FLAGS))
                option = _option_of(str(error))
                if not option or getattr(options, option) == getattr(ServeOptions(), option):
                    break
                options = replace(options, **{option: getattr(ServeOptions(), option)})
    return list(dict.fromkeys(found)), options


def _option_of(error: str) -> str:
    """The option that a refusal begins with, by its flag or by a process's field; empty: by neither."""
    name = error.partition(":")[0].partition(" ")[0].removeprefix("--").replace("-", "_")
    name = RENAMED.get(name, name)
    return name if hasattr(ServeOptions(), name) else ""


def _check_counts(options: ServeOptions) -> None:
    for field in ("frontends", "tensor_parallel_size"):
        if getattr(options, field) < 1:
            raise UsageError(f"{FLAGS[field]}: must be at least 1, got {getattr(options, field)}")


def _scheduler(options: ServeOptions, model: Model, frontends_address: str, workers_address: str) -> SchedulerConfig:
    computed = {
        "frontends_address": frontends_address,
        "workers_address": workers_address,
        "max_num_batched_tokens": options.max_num_batched_tokens or model.step_tokens,
    }
    return SchedulerConfig(**_option_fields(SchedulerConfig, options) | computed)


def _worker(options: ServeOptions, model: Model, workers_address: str, run_dir: str) -> WorkerConfig:
    computed = {
        "scheduler_address": workers_address,
        "run_dir": run_dir,
        "model": str(model.directory),
        "tokenizer": model.tokenizer or options.tokenizer,
        **_types(options),
        "max_num_batched_tokens": options.max_num_batched_tokens or model.step_tokens,
        "flags": FLAGS,
    }
    return WorkerConfig(**_option_fields(WorkerConfig, options) | computed)


def _types(options: ServeOptions) -> dict[str, Any]:
    """Types under one name each, where flags have several."""
    return {
        "dtype": _DTYPES.get(options.dtype, options.dtype),
        "kv_cache_dtype": KV_DTYPES.get(options.kv_cache_dtype, options.kv_cache_dtype),
    }


def inspected(options: ServeOptions, model: str) -> WorkerConfig:
    """The configuration of a worker that never starts, to judge a model by. Raises `ValueError`."""
    default = step_tokens(Path(model)) if model else DEFAULT_STEP_TOKENS
    computed = {"model": model, "max_num_batched_tokens": options.max_num_batched_tokens or default, "flags": FLAGS}
    return WorkerConfig(**_option_fields(WorkerConfig, options) | _types(options) | computed)


def _frontend(options: ServeOptions, model: Model, frontends_address: str, run_dir: str) -> FrontendConfig:
    most_bytes = options.max_body_bytes or TEXT_BODY_BYTES
    if options.max_preparing_bytes < 2 * most_bytes:
        raise ValueError(
            f"max_preparing_bytes: must be at least twice --max-body-bytes, which is {most_bytes}; "
            f"got {options.max_preparing_bytes}"
        )
    computed = {
        "scheduler_address": frontends_address,
        "run_dir": run_dir,
        "model": str(model.directory),
        "tokenizer": model.tokenizer or options.tokenizer,
        "served_model_names": options.served_model_name or (model.name,),
        "tool_call_parser": options.tool_call_parser if options.enable_auto_tool_choice else "",
        "use_generation_config": options.generation_config == "auto",
        "override_generation_config": _overrides(options.override_generation_config),
        "limit_mm_per_prompt": _object("limit_mm_per_prompt", options.limit_mm_per_prompt),
        "mm_processor_kwargs": (processor := _processor_settings(options)),
        "media_io_kwargs": _video_settings(options, processor),
        "flags": FLAGS,
    }
    return FrontendConfig(**_option_fields(FrontendConfig, options) | computed)


def _object(field: str, text: str) -> dict[str, Any]:
    """The object of a JSON text; empty where there is none. Raises `ValueError` naming the field."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"{field}: must be a JSON object, got {text!r:.64}: {error}") from error


def _processor_settings(options: ServeOptions) -> dict[str, Any]:
    """The settings of `--mm-processor-kwargs`. Raises `ValueError` naming the field."""
    field = "mm_processor_kwargs"
    settings = _object(field, options.mm_processor_kwargs)
    if (is_sampled := settings.pop("do_sample_frames", True)) is not True:
        message = f"do_sample_frames is {is_sampled!r:.64}, but frames of a video file are always sampled; leave it out"
        raise ValueError(f"{field}: {message}")
    _check_exclusive(field, settings)
    return settings


def _video_settings(options: ServeOptions, processor: Mapping[str, Any]) -> dict[str, Any]:
    """The frames that `--media-io-kwargs` says beside those settings; vLLM's -1 says nothing.

    Raises `ValueError` naming the field.
    """
    field = "media_io_kwargs"
    given = _object(field, options.media_io_kwargs)
    video = given.get("video", {})
    is_known = isinstance(video, dict) and not set(video) - set(FRAMES)
    if set(given) - {"video", "image"} or given.get("image", {}) != {} or not is_known:
        wanted = '{"video": {"fps": 1}} or {"video": {"num_frames": 32}}'
        raise ValueError(f"{field}: takes {wanted}, got {options.media_io_kwargs:.64}")
    stated = {name: value for name, value in video.items() if value != NO_LIMIT}
    for name, value in stated.items():
        if processor.get(name, value) != value:
            message = f"{name} is {value!r}, but {processor[name]!r} in --mm-processor-kwargs; set only one of them"
            raise ValueError(f"{field}: {message}")
    _check_exclusive(field, {**processor, **stated})
    return stated


def _check_exclusive(field: str, settings: Mapping[str, Any]) -> None:
    if all(settings.get(name) is not None for name in FRAMES):
        raise ValueError(f"{field}: fps excludes num_frames; set only one of them")


def _overrides(text: str) -> SamplingOverrides:
    """Raises `ValueError` naming the flag, the field in it and the remedy."""
    field = "override_generation_config"
    try:
        given = json.loads(text or "{}")
        known = SamplingOverrides.__struct_fields__
        for name in given:
            if name not in known:
                hint = near(name, known) or f"; it takes {', '.join(known)}, all else is said by requests"
                raise ValueError(f"{name!r} is no default that can be set here{hint}")
        return msgspec.convert(given, SamplingOverrides)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{field}: {str(error).replace(' - at `$.', ' at `')}; correct it or leave it out") from error


def _option_fields(kind: type[msgspec.Struct], options: ServeOptions) -> dict[str, Any]:
    """The fields of a configuration that are options, under their own names or others."""
    named = {field: RENAMED.get(field, field) for field in kind.__struct_fields__}
    return {field: getattr(options, option) for field, option in named.items() if hasattr(options, option)}


def _timers(options: ServeOptions) -> Timers:
    for name in ("startup_timeout", "restart_window"):
        if not 0 < getattr(options, name) < float("inf"):
            raise ValueError(f"{name}: must be a finite number of seconds above 0, got {getattr(options, name):g}")
    if not 0 <= options.drain_timeout < float("inf"):
        raise ValueError(f"drain_timeout: must be finite seconds, at least 0, got {options.drain_timeout:g}")
    if options.max_restarts < 0:
        raise ValueError(f"max_restarts: must be at least 0, got {options.max_restarts}")
    return Timers(
        startup=options.startup_timeout,
        drain=options.drain_timeout,
        max_restarts=options.max_restarts,
        restart_window=options.restart_window,
    )


def show(composed: Composed) -> str:
    """YAML, for the start-up log."""
    text = ""
    for part, values in msgspec.to_builtins(composed).items():
        if not isinstance(values, dict):
            text += f"{part}: {values}\n"
            continue
        shown = {name: value for name, value in values.items() if name != "flags"}
        text += f"{part}:\n" + "".join(f"  {name}: {_scalar(value)}\n" for name, value in shown.items())
    return text.rstrip()


def _scalar(value: object) -> str:
    return msgspec.json.encode(value).decode()
