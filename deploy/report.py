"""What a person reads once the engine is ready."""

import json
import shlex
import shutil
import sys
from pathlib import Path

from quire.deploy.sizes import format_bytes
from quire.frontend.config import FrontendConfig
from quire.proto.requests import ModelFacts

PROMPT = "def fibonacci(n):"


def engine_summary(facts: ModelFacts) -> list[str]:
    """Model, memory and capacity, as the workers measured them."""
    num_tokens = facts.num_blocks * facts.block_size
    return [
        f"{facts.architecture}, {facts.dtype} on {facts.device}",
        f"memory: weights {format_bytes(facts.weight_bytes)}, KV cache {format_bytes(facts.kv_bytes)}",
        f"KV cache: {facts.num_blocks} blocks of {facts.block_size} tokens, {num_tokens} tokens",
        f"maximum concurrency for {facts.max_model_len} tokens: {num_tokens / facts.max_model_len:.2f}x",
    ]


def target_of(host: str, port: int) -> str:
    """`host:port` as a client on this machine reaches it."""
    reachable = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def addresses(frontend: FrontendConfig) -> str:
    """The line that says where the engine is reached."""
    line = f"ready: gRPC on {target_of(frontend.host, frontend.grpc_port)}"
    if frontend.http_port >= 0:
        line += f", HTTP on {url_of(frontend)}"
    return line


def url_of(frontend: FrontendConfig) -> str:
    """Of the HTTP API, as a client on this machine reaches it."""
    return f"{'https' if frontend.tls_cert_file else 'http'}://{target_of(frontend.host, frontend.http_port)}"


def ready_to_paste(frontend: FrontendConfig) -> str:
    """Ways to ask for the first tokens."""
    target = target_of(frontend.host, frontend.grpc_port)
    flags = python = curl = ""
    if frontend.api_key_file:
        flags += f" --api-key-file {shlex.quote(frontend.api_key_file)}"
        python += f', api_key=open("{frontend.api_key_file}").readline().strip()'
        curl += f' -H "Authorization: Bearer $(head -n 1 {shlex.quote(frontend.api_key_file)})"'
    if frontend.tls_cert_file:
        flags, python, curl = (
            flags + " --tls-ca-file CA.pem",
            python + ', tls_ca_file="CA.pem"',
            curl + " --cacert CA.pem",
        )
    if frontend.tls_client_ca_file:
        flags += " --tls-cert-file CLIENT.pem --tls-key-file CLIENT.key"
        python += ', tls_cert_file="CLIENT.pem", tls_key_file="CLIENT.key"'
        curl += " --cert CLIENT.pem --key CLIENT.key"
    text = f"""
Try it:

  {_command()} generate {shlex.quote(PROMPT)} --max-tokens 64 --target {target}{flags}

or from Python:

  from quire.proto.api import GenerateRequest
  from quire.proto.client import Client

  with Client("{target}"{python}) as client:
      print(client.generate(GenerateRequest(input="{PROMPT}", max_tokens=64)).outputs[0].text)
"""
    if frontend.http_port >= 0:
        body = json.dumps({"model": frontend.served_model_names[0], "prompt": PROMPT, "max_tokens": 64})
        text += f"""
or over HTTP, as OpenAI's clients do:

  curl {url_of(frontend)}/v1/completions -H 'Content-Type: application/json'{curl} -d {shlex.quote(body)}
"""
    return text


def _command() -> str:
    """How this very quire is called from the shell that reads the example."""
    called = Path(sys.argv[0])
    on_path = shutil.which("quire")
    if called.name != "quire" or (on_path and Path(on_path).samefile(called)):
        return "quire"
    return shlex.quote(str(called))
