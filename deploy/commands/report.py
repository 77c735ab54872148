"""Summary of a ready engine for a person: model, memory, addresses, examples."""

import json
import shlex
import shutil
import sys
from pathlib import Path

from quire.frontend.config import FrontendConfig
from quire.proto.messages.requests import ModelFacts
from quire.proto.process.sizes import format_bytes

PROMPT = "def fibonacci(n):"
MOST_LABELS = 5
"""Labels that are named."""
ASKED: dict[str, tuple[str, dict[str, object]]] = {
    "generate": ("v1/completions", {"prompt": PROMPT, "max_tokens": 64}),
    "embed": ("v1/embeddings", {"input": PROMPT}),
    "score": ("v1/rerank", {"query": PROMPT, "documents": ["return fibonacci(n - 1) + fibonacci(n - 2)", "a poem"]}),
    "classify": ("classify", {"input": PROMPT}),
    "reward": ("classify", {"input": PROMPT}),
}
"""Example of a request for each task."""


def engine_summary(facts: ModelFacts) -> list[str]:
    """Model, memory and capacity, as the workers measured them."""
    num_tokens = facts.num_kv_tokens
    name = f"{facts.architecture}, {facts.dtype} on {facts.device}"
    made = [task_summary(facts)] if facts.makes_vectors else []
    if facts.whole_prompts and not facts.kv_bytes:
        return [name, f"memory: weights {format_bytes(facts.weight_bytes)}, no KV cache", *made]
    return [
        name,
        *made,
        f"memory: weights {format_bytes(facts.weight_bytes)}, KV cache {format_bytes(facts.kv_bytes)}",
        f"KV cache: {facts.num_blocks} blocks of {facts.block_size} tokens, {num_tokens} tokens",
        f"maximum concurrency for {facts.max_model_len} tokens: {num_tokens / facts.max_model_len:.2f}x",
    ]


def task_summary(facts: ModelFacts) -> str:
    """The answer to a text, of a model that does not generate."""
    longest = f"texts of up to {facts.max_model_len} tokens"
    if facts.head is None:
        return f"embeds: vectors of {facts.embedding_size} numbers, {longest}"
    does = {"classify": "classifies", "score": "scores pairs", "reward": "rewards"}[facts.task]
    does += " each token" if facts.by_token else ""
    labels = ", ".join(facts.head.labels[:MOST_LABELS]) + (", ..." if len(facts.head.labels) > MOST_LABELS else "")
    count = len(facts.head.labels)
    return f"{does}: {count} label{'s' if count > 1 else ''} ({labels}), {longest}"


def target_of(host: str, port: int) -> str:
    """`host:port` as a client on this machine reaches it."""
    reachable = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def addresses(frontend: FrontendConfig, word: str = "ready") -> str:
    """The line that says where the engine is reached, behind a word and a colon."""
    line = f"{word}: gRPC on {target_of(frontend.host, frontend.grpc_port)}"
    if frontend.http_port >= 0:
        line += f", HTTP on {url_of(frontend)}"
    return line


def url_of(frontend: FrontendConfig) -> str:
    """Address of the HTTP API, as a client on this machine reaches it."""
    return f"{'https' if frontend.tls_cert_file else 'http'}://{target_of(frontend.host, frontend.http_port)}"


def ready_to_paste(frontend: FrontendConfig, task: str = "generate", by_token: bool = False) -> str:
    """Examples that ask for the first tokens, vector or numbers. The reader fills in the names of PEM files.

    `by_token`: each token has numbers.
    """
    flags, python, curl = _credentials(frontend)
    target = target_of(frontend.host, frontend.grpc_port)
    text = (
        ""
        if task != "generate"
        else f"""
Try it:

  {_command()} generate {shlex.quote(PROMPT)} --max-tokens 64 --target {target}{flags}

or from Python:

  from quire.proto.api import GenerateRequest
  from quire.proto.client import Client

  with Client("{target}"{python}) as client:
      print(client.generate(GenerateRequest(input="{PROMPT}", max_tokens=64)).outputs[0].text)
"""
    )
    if frontend.http_port >= 0:
        path, asked = ("pooling", {"input": PROMPT}) if by_token else ASKED[task]
        body = {"model": frontend.served_model_names[0], **asked}
        text += f"""
Over HTTP, as OpenAI's clients do:

  curl {url_of(frontend)}/{path} -H 'Content-Type: application/json'{curl} -d {shlex.quote(json.dumps(body))}
"""
    return text


def _credentials(frontend: FrontendConfig) -> tuple[str, str, str]:
    """Credentials for the examples: flags of `quire generate`, arguments of `Client`, flags of curl."""
    flags = python = curl = ""
    if path := frontend.api_key_file:
        flags += f" --api-key-file {shlex.quote(path)}"
        python += f', api_key=open("{path}").readline().strip()'
        curl += f' -H "Authorization: Bearer $(head -n 1 {shlex.quote(path)})"'
    if frontend.tls_cert_file:
        flags += " --tls-ca-file CA.pem"
        python += ', tls_ca_file="CA.pem"'
        curl += " --cacert CA.pem"
    if frontend.tls_client_ca_file:
        flags += " --tls-cert-file CLIENT.pem --tls-key-file CLIENT.key"
        python += ', tls_cert_file="CLIENT.pem", tls_key_file="CLIENT.key"'
        curl += " --cert CLIENT.pem --key CLIENT.key"
    return flags, python, curl


def _command() -> str:
    """The word by which the shell of the reader calls this very quire."""
    called = Path(sys.argv[0])
    on_path = shutil.which("quire")
    if called.name != "quire" or (on_path and Path(on_path).samefile(called)):
        return "quire"
    return shlex.quote(str(called))
