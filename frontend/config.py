"""The settings of one frontend process, fixed at its start."""

import re
from typing import Any, Literal

import msgspec

from quire.frontend.parsing.formats import AnswerFormats
from quire.proto.messages.params import SamplingParams, read_top_k

LogLevel = Literal["debug", "info", "warning", "error"]

TEXT_BODY_BYTES = 8 << 20
IMAGE_BODY_BYTES = 64 << 20
VIDEO_BODY_BYTES = 128 << 20
"""Largest bodies for models that read text, for those that take images, and for those that take videos, too."""
MEDIA_KINDS = ("image", "video", "audio")
KEY = r"[\x21-\x7e]{8,1024}"
"""Pattern of an API key: 8 to 1024 visible ASCII characters."""


class SamplingOverrides(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values that this deployment gives sampling fields which a request leaves unset; None: the model's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | float | None = None
    """-1 and 0: all tokens."""
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    """The `max_tokens` of a request that has none."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: must be at least 1, got {self.max_new_tokens}")
        SamplingParams(**self.values())

    def values(self) -> dict[str, Any]:
        """The fields that are set, as `SamplingParams` takes them."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if "max_new_tokens" in values:
            values["max_tokens"] = values.pop("max_new_tokens")
        return values if self.top_k is None else values | {"top_k": read_top_k(self.top_k)}


class FrontendConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses, names, limits and timers of one frontend. Facts that the workers measure arrive with `Welcome`."""

    scheduler_address: str = ""
    """The scheduler's request socket, `ipc://...`."""
    host: str = "127.0.0.1"
    grpc_port: int = 0
    """0 takes any free port; the real one is written to `ready_file`."""
    http_port: int = -1
    """Port of the HTTP server; 0 takes any free port, -1: no HTTP."""
    model: str = ""
    """Directory of the model: generation_config.json."""
    tokenizer: str = ""
    """Directory of tokenizer.json and the chat template; empty is `model`."""
    served_model_names: tuple[str, ...] = ()
    """Names a request may ask for; the first is reported."""
    index: int = 0
    """Number of this frontend among those of its engine, for logs and seeds."""
    seed: int | None = None
    """Seed of the repeatable sequence from which requests without a seed draw theirs, by arrival. None: random."""
    api_key_file: str = ""
    """One bearer key per line, besides those of $QUIRE_API_KEY; without any: open to everyone who can connect."""
    admin_key_file: str = ""
    """Keys for what touches everybody's requests, besides $QUIRE_ADMIN_KEY. An admin key opens everything.

    Without any, such calls are refused where users have keys, and open where they have none.
    """
    tls_cert_file: str = ""
    """PEM chain; with `tls_key_file` both servers speak TLS only."""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    """PEM; given: clients must show a certificate signed by it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names an HTTP Host header may have. Empty: any, but only this machine's own on a loopback address."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages a browser lets call the HTTP API; "*" is any, empty none."""
    tool_call_parser: str = "auto"
    """Name in the table of tool parsers; auto: by the chat template; off, or empty: no calls are looked for."""
    reasoning_parser: str = "auto"
    """Name in the table of reasoning parsers; auto: by the chat template; off, or empty: it stays in the text."""
    chat_template: str = ""
    """File of a Jinja template that replaces the model's own."""
    use_generation_config: bool = True
    """Defaults of unset sampling fields come from the model's generation_config.json."""
    override_generation_config: SamplingOverrides = SamplingOverrides()
    """Defaults of unset sampling fields that go before the model's."""
    reflection: bool = True

    max_receive_bytes: int = 0
    """Largest body of one request; 0: see `body_bytes`."""
    max_send_bytes: int = 64 << 20
    """Largest answer, as the Python client accepts it: answers with many logprobs are large."""
    max_connections: int = 0
    """Most connections of both servers together; 0: as many as open files allow, see `limits.descriptors`."""
    max_preparing_bytes: int = 256 << 20
    """Most bytes of bodies that are being read and prepared, over all connections of both servers."""
    encoder_memory_bytes: int = 2 << 30
    """Address space of each of the two processes that tokenize long texts."""
    body_threads: int = 2
    """Number of threads that look into large bodies."""
    answer_threads: int = 2
    """Number of threads that write large answers."""
    max_concurrent_streams: int = 1024
    """Most calls open at once on one gRPC connection; sixteen times as many on all of them."""
    default_timeout_seconds: float = 600.0
    max_timeout_seconds: float = 3600.0
    slow_reader_bytes: int = 64 << 10
    """Most unread bytes of one stream before it is refused; at least some steps of a request with many logprobs."""
    slow_reader_seconds: float = 30.0
    """Time for which one stream may leave something unread."""
    tokenizer_threads: int = 2

    beat_seconds: float = 1.0
    lost_after_seconds: float = 3.0
    """Silence after which the scheduler counts as lost."""
    resume_window_seconds: float = 15.0
    """Time for which open requests wait while there is no scheduler."""
    startup_seconds: float = 600.0
    """Time for which they wait for the next scheduler's workers, from its welcome on; their deadlines go on."""
    max_resumes: int = 2
    """Number of times a request is submitted again after a loss of the scheduler that it may have caused."""
    drain_seconds: float = 45.0
    """Time that running requests get after SIGTERM."""

    max_header_bytes: int = 32 << 10
    max_num_headers: int = 100
    header_seconds: float = 10.0
    """Time that an HTTP client may take for a request's headers, and between pieces of its body."""
    keep_alive_seconds: float = 620.0
    """Time after which an idle HTTP connection is closed; longer than clients and balancers keep theirs for reuse, or
    they send a request into one that is just being closed. Google's balancers have the longest, 600 s.
    """
    grammar_seconds: float = 2.0
    """CPU time of compiling one grammar."""
    grammar_memory_bytes: int = 1 << 30
    """Address space of the process that compiles grammars."""
    template_seconds: float = 1.0
    """CPU time of rendering one chat."""
    run_dir: str = ""
    """Private directory of the engine: metrics and stored responses that all its frontends share."""
    max_stored_response_bytes: int = 64 << 20
    """Most bytes of stored `/v1/responses`, over all frontends; the oldest are deleted."""
    unknown_fields: Literal["drop", "refuse"] = "drop"
    """Fate of HTTP fields that this server does not know; over gRPC they are refused."""
    enable_timings: bool = False
    """The engine's times in each `usage` of HTTP."""
    language_model_only: bool = False
    """Text alone, of a model that also reads images."""
    limit_mm_per_prompt: dict[str, int] = {}
    """Kind of media -> the most of them in one prompt. What is not named: 999."""
    mm_processor_kwargs: dict[str, Any] = {}
    """Settings that go before the model's: `min_pixels` and `max_pixels`, or both in `size`; of videos also `fps` or
    `num_frames`."""
    media_io_kwargs: dict[str, Any] = {}
    """`fps` or `num_frames` of videos, where they are set beside the others."""
    media_processes: int = 2
    """Number of processes that decode images."""
    max_image_pixels: int = 64 << 20
    """Most pixels of an image as it comes."""
    media_store_bytes: int = 1 << 30
    """Most bytes of decoded images, those of ended requests included, in `run_dir`."""
    allowed_local_media_path: str = ""
    """Folder from which requests may name files; empty: none."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts from which requests may have images fetched; empty: none."""
    metrics_without_key: bool = False
    """`/metrics` needs no key where everything else does."""
    vllm_metric_names: bool = False
    """`/metrics` also names vLLM's series."""
    otlp_endpoint: str = ""
    """Traces go there by OTLP: http(s)://host:4318 (HTTP) or grpc://host:4317; empty: none are made."""

    flags: dict[str, str] = {}
    """Field -> the flag that sets it, which messages about mistakes name."""
    log_level: LogLevel = "info"
    ready_file: str = ""
    """Written as JSON `{"grpc_port": ..., "http_port": ..., "ready": false}` once the ports are open, with true once
    requests are taken. Touched every second from the event loop, as a sign of life.
    """

    def __post_init__(self) -> None:
        for name in ("scheduler_address", "model", "host"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must be set")
        if not self.served_model_names or not all(self.served_model_names):
            raise ValueError("served_model_names: must hold at least one name, and no empty one")
        if not 0 <= self.grpc_port <= 65_535:
            raise ValueError(f"grpc_port: must be in [0, 65535], got {self.grpc_port}")
        if not -1 <= self.http_port <= 65_535:
            raise ValueError(f"http_port: must be in [0, 65535], or -1 for none, got {self.http_port}")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file: needs tls_key_file, and the other way round; give both or none")
        if self.tls_client_ca_file and not self.tls_cert_file:
            raise ValueError("tls_client_ca_file: needs tls_cert_file and tls_key_file")
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"[\w.+-]+://[^/]+/?|null", origin):
                raise ValueError(f"allowed_origins: {origin!r} is none; write https://app.example, or * for any")
        self._check_media()
        AnswerFormats.choose(self.tool_call_parser, self.reasoning_parser)  # a wrong name is told before any start
        for name in (
            "max_send_bytes",
            "max_concurrent_streams",
            "slow_reader_bytes",
            "tokenizer_threads",
            "max_preparing_bytes",
            "encoder_memory_bytes",
            "body_threads",
            "answer_threads",
            "max_header_bytes",
            "max_num_headers",
            "grammar_memory_bytes",
            "max_stored_response_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in (
            "default_timeout_seconds",
            "max_timeout_seconds",
            "slow_reader_seconds",
            "beat_seconds",
            "lost_after_seconds",
            "resume_window_seconds",
            "startup_seconds",
            "header_seconds",
            "keep_alive_seconds",
            "grammar_seconds",
            "template_seconds",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be a finite number above 0, got {getattr(self, name)}")
        if self.default_timeout_seconds > self.max_timeout_seconds:
            raise ValueError(
                f"default_timeout_seconds: {self.default_timeout_seconds:g} is above max_timeout_seconds "
                f"{self.max_timeout_seconds:g}"
            )
        for name in ("max_resumes", "drain_seconds", "index", "max_connections", "max_receive_bytes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must be at least 0, got {getattr(self, name)}")

    def _check_media(self) -> None:
        for name in ("media_processes", "max_image_pixels", "media_store_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for kind, most in self.limit_mm_per_prompt.items():
            if kind not in MEDIA_KINDS or most < 0:
                wanted = f"counts, at least 0, of {', '.join(MEDIA_KINDS)}"
                raise ValueError(f"limit_mm_per_prompt: takes {wanted}, got {kind[:64]!r}: {most}")

    def body_bytes(self, takes_images: bool, takes_videos: bool = False) -> int:
        """Largest body of one request; of those with media two find room at once, as of all others."""
        wanted = VIDEO_BODY_BYTES if takes_videos else IMAGE_BODY_BYTES if takes_images else TEXT_BODY_BYTES
        return self.max_receive_bytes or max(TEXT_BODY_BYTES, min(wanted, self.max_preparing_bytes // 2))

    @property
    def tokenizer_dir(self) -> str:
        return self.tokenizer or self.model
