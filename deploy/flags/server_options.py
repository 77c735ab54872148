"""The options of the ports and of who may connect: the first two groups of the table."""

from dataclasses import dataclass
from typing import Annotated, Literal

from quire.deploy.flags.flag import Flag
from quire.deploy.flags.sizes import parse_bytes, parse_port


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `quire serve` that say where it listens, whom it answers and what one client may take."""

    host: Annotated[str, Flag("server", "where to listen; :: for every interface, 0.0.0.0: of IPv4")] = "127.0.0.1"
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
    max_body_bytes: Annotated[
        int,
        Flag(
            "server",
            "largest body of one request",
            "SIZE",
            parse_bytes,
            default="8 MiB; 64 MiB for a model that takes images, 128 MiB for one that takes videos",
        ),
    ] = 0
    unknown_fields: Annotated[
        Literal["drop", "refuse"],
        Flag("server", "HTTP fields that are not known: drop and name them in a header, or refuse the request"),
    ] = "drop"
    enable_timings: Annotated[bool, Flag("server", "the engine's times in every usage block of HTTP")] = False
    max_connections: Annotated[
        int,
        Flag(
            "server",
            "open connections of one frontend, both APIs together; idle ones make room",
            "N",
            default="what the limit of open files allows, at most 32768",
        ),
    ] = 0
    http_keep_alive: Annotated[
        float,
        Flag("server", "time until an idle HTTP connection is closed; longer than a balancer before it", "SECONDS"),
    ] = 620.0
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
    metrics_without_key: Annotated[bool, Flag("security", "/metrics needs no key, as in vLLM")] = False
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
