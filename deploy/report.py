"""What a person reads once the engine is ready."""

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


def ready_to_paste(frontend: FrontendConfig) -> str:
    """Two ways to ask for the first tokens."""
    target = target_of(frontend.host, frontend.grpc_port)
    key_flag = f" --api-key-file {shlex.quote(frontend.api_key_file)}" if frontend.api_key_file else ""
    key = f', api_key=open("{frontend.api_key_file}").readline().strip()' if frontend.api_key_file else ""
    return f"""
Try it:

  {_command()} generate {shlex.quote(PROMPT)} --max-tokens 64 --target {target}{key_flag}

or from Python:

  from quire.proto.api import GenerateRequest
  from quire.proto.client import Client

  with Client("{target}"{key}) as client:
      print(client.generate(GenerateRequest(input="{PROMPT}", max_tokens=64)).outputs[0].text)
"""


def _command() -> str:
    """How this very quire is called from the shell that reads the example."""
    called = Path(sys.argv[0])
    on_path = shutil.which("quire")
    if called.name != "quire" or (on_path and Path(on_path).samefile(called)):
        return "quire"
    return shlex.quote(str(called))
