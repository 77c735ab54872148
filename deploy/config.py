"""Options to the frozen configurations of the three processes: the only file that knows all of them."""

import msgspec

from quire.deploy.arguments import UsageError
from quire.deploy.engine import Timers
from quire.deploy.options import ServeOptions
from quire.deploy.resolve import Model
from quire.deploy.rundir import RunDir
from quire.frontend.config import FrontendConfig
from quire.scheduler.config import SchedulerConfig
from quire.worker.config import Dtype, WorkerConfig

FRONTENDS_SOCKET = "frontends"
WORKERS_SOCKET = "workers"

_DTYPES: dict[str, Dtype] = {"half": "float16", "float": "float32"}


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine was told, all of it. Printed once at the start."""

    scheduler: SchedulerConfig
    worker: WorkerConfig
    frontend: FrontendConfig
    """Of frontend 0; the others differ in `index` and `ready_file`."""
    num_frontends: int
    timers: Timers


def compose(options: ServeOptions, model: Model, run_dir: RunDir) -> Composed:
    """Raises `UsageError` when a value is out of range, naming it."""
    if options.frontends < 1:
        raise UsageError(f"frontends: must be at least 1, got {options.frontends}")
    if options.tensor_parallel_size < 1:
        raise UsageError(f"tensor_parallel_size: must be at least 1, got {options.tensor_parallel_size}")
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
        raise UsageError(str(error)) from error


def _scheduler(options: ServeOptions, model: Model, frontends_address: str, workers_address: str) -> SchedulerConfig:
    return SchedulerConfig(
        frontends_address=frontends_address,
        workers_address=workers_address,
        world_size=options.tensor_parallel_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or model.step_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        enable_chunked_prefill=options.enable_chunked_prefill,
        scheduling_policy=options.scheduling_policy,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        step_timeout_seconds=options.step_timeout,
        log_level=options.log_level,
    )


def _worker(options: ServeOptions, model: Model, workers_address: str, run_dir: str) -> WorkerConfig:
    dtype: Dtype = _DTYPES.get(options.dtype, options.dtype)  # type: ignore[arg-type]
    return WorkerConfig(
        scheduler_address=workers_address,
        run_dir=run_dir,
        model=str(model.directory),
        tokenizer=options.tokenizer,
        task=options.task,
        load_format=options.load_format,
        dtype=dtype,
        quantization=options.quantization,
        device=options.device,
        tensor_parallel_size=options.tensor_parallel_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or model.step_tokens,
        block_size=options.block_size,
        kv_cache_dtype=options.kv_cache_dtype,
        gpu_memory_utilization=options.gpu_memory_utilization,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        enforce_eager=options.enforce_eager,
        seed=options.seed,
        num_threads=options.num_threads,
        log_level=options.log_level,
    )


def _frontend(options: ServeOptions, model: Model, frontends_address: str, run_dir: str) -> FrontendConfig:
    return FrontendConfig(
        scheduler_address=frontends_address,
        run_dir=run_dir,
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        model=str(model.directory),
        tokenizer=options.tokenizer,
        served_model_names=options.served_model_name or (model.name,),
        seed=options.seed,
        api_key_file=options.api_key_file,
        admin_key_file=options.admin_key_file,
        tls_cert_file=options.ssl_certfile,
        tls_key_file=options.ssl_keyfile,
        tls_client_ca_file=options.ssl_ca_certs,
        allowed_hosts=options.allowed_hosts,
        allowed_origins=options.allowed_origins,
        max_receive_bytes=options.max_body_bytes,
        max_connections=options.max_connections,
        max_concurrent_streams=options.max_concurrent_streams,
        tool_call_parser=options.tool_call_parser if options.enable_auto_tool_choice else "",
        reasoning_parser=options.reasoning_parser,
        vllm_metric_names=options.vllm_metric_names,
        otlp_endpoint=options.otlp_traces_endpoint,
        chat_template=options.chat_template,
        use_generation_config=options.generation_config == "auto",
        startup_seconds=options.startup_timeout,
        drain_seconds=options.drain_timeout,
        log_level=options.log_level,
    )


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
        text += f"{part}:\n" + "".join(f"  {name}: {_scalar(value)}\n" for name, value in values.items())
    return text.rstrip()


def _scalar(value: object) -> str:
    return msgspec.json.encode(value).decode()
