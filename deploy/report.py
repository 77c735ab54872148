"""What a person reads once the engine is ready."""

from quire.deploy.sizes import format_bytes
from quire.frontend.config import FrontendConfig
from quire.proto.requests import ModelFacts


def engine_summary(facts: ModelFacts) -> list[str]:
    """Model, memory and capacity, as the workers measured them."""
    num_tokens = facts.num_blocks * facts.block_size
    return [
        f"{facts.architecture}, {facts.dtype} on {facts.device}",
        f"memory: weights {format_bytes(facts.weight_bytes)}, KV cache {format_bytes(facts.kv_bytes)}",
        f"KV cache: {facts.num_blocks} blocks of {facts.block_size} tokens, {num_tokens} tokens",
        f"maximum concurrency for {facts.max_model_len} tokens: {num_tokens / facts.max_model_len:.2f}x",
    ]


def ready_to_paste(frontend: FrontendConfig, port: int) -> str:
    """Two ways to ask for the first tokens."""
    reachable = {"0.0.0.0": "localhost", "::": "localhost"}.get(frontend.host, frontend.host)
    target = f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"
    key = f" --api-key-file {frontend.api_key_file}" if frontend.api_key_file else ""
    return f"""
Try it:

  quire generate "Once upon a time" --max-tokens 64 --target {target}{key}

or from Python:

  from quire.proto.client import Client

  for event in Client("{target}").stream("Once upon a time", max_tokens=64):
      print(event.text, end="", flush=True)
"""
