"""The CPU rows of the targets: quire in float32, bfloat16 and int8, and transformers, on one random Llama shape.

`python tests/bench/cpu_peers.py [--only a b ...]` prints a table and, last, one JSON object. Workloads: (a) one
request, prompt 128, output 64; (b) 64 requests, 16 at a time, prompt 128, output 64; (c) 32 requests, 8 at a time, a
shared prefix of 512 and 32 tokens of their own, output 32; (d) time to first token of a lone prompt of 1024. The limits
are the model's bytes over the read bandwidth and its operations over the fastest linear layer, both of this machine,
measured right before: decode steps at the one, prompts at the other, nothing else counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LAYER_PARAMETERS = 12 * (768 * (768 + 2 * 256) + 768 * 768 + 3 * 768 * 2048)
READ_PARAMETERS = LAYER_PARAMETERS + 32_000 * 768
"""Of a decode step; a prompt token costs the layers alone."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
CEILING = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}
ENGINE = {
    "float32": [],
    "bfloat16": ["--dtype", "bfloat16"],
    "int8": ["--quantization", "int8"],
}
PEER_REQUESTS = {"one at a time": 6, "static batches": 32, "continuous batching": 64}


def quire_bench(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "quire.deploy", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def workload(name: str, model: str, kind: str) -> float:
    """Tokens per second, or for (d) milliseconds."""
    engine = [model, "--load-format", "dummy", *ENGINE[kind]]
    if name == "a":
        lengths = ["--batch-size", "1", "--input-len", "128", "--output-len", "64", "--repeats", "3"]
        return 1e3 / float(quire_bench(["latency", *engine, *lengths])["decode_ms_per_step_p50"])
    if name == "d":
        lengths = ["--batch-size", "1", "--input-len", "1024", "--output-len", "2", "--repeats", "5"]
        return float(quire_bench(["latency", *engine, *lengths])["prefill_ms_p50"])
    shared = ["--shared-prefix", "512"] if name == "c" else []
    requests, at_once, own, output = (64, 16, 128, 64) if name == "b" else (32, 8, 32, 32)
    lengths = ["--num-prompts", str(requests), "--input-len", str(own), "--output-len", str(output)]
    measured = quire_bench(["offline", *engine, "--max-num-seqs", str(at_once), *shared, *lengths])
    return float(measured["output_tokens_per_s"])


def limit(name: str, kind: str, machine: dict[str, Any], read: float) -> float:
    """The same figure if only weights were read and only linear layers computed."""
    step = READ_PARAMETERS * ITEM_BYTES[kind] / read
    token = 2 * LAYER_PARAMETERS / (1e9 * max(machine[f"{CEILING[kind]}_linear_gop_s"].values()))
    if name == "a":
        return 1 / step
    if name == "d":
        return 1e3 * 1024 * token
    requests, at_once, prompts, output = (64, 16, 64 * 128, 64) if name == "b" else (32, 8, 512 + 32 * 32, 32)
    return requests * output / (prompts * token + requests / at_once * output * step)


def transformers_rates() -> dict[str, float]:
    """Output tokens per second of workload (b) in float32, three ways; after a warm-up of each."""
    import torch
    import transformers

    torch.manual_seed(0)
    fields = {name: value for name, value in SHAPE.items() if name not in ("architectures", "torch_dtype")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.randint(1, 32_000, (64, 128))
    greedy = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}

    def in_batches(requests: int, size: int) -> None:
        for first in range(0, requests, size):
            ids = prompts[first : first + size]
            model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)

    def continuous(requests: int) -> None:
        config = transformers.GenerationConfig(max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)
        batching = transformers.ContinuousBatchingConfig(num_blocks=256, block_size=32, max_batch_tokens=256)
        results = model.generate_batch(
            prompts[:requests].tolist(),
            generation_config=config,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        lengths = [len(result.generated_tokens) for result in results.values()]
        if lengths != [64] * requests:
            raise RuntimeError(f"transformers was asked for 64 tokens each and made {lengths}")

    ways = {
        "one at a time": lambda count: in_batches(count, 1),
        "static batches": lambda count: in_batches(count, 16),
        "continuous batching": continuous,
    }
    rates = {}
    for name, way in ways.items():
        way(1 if name == "one at a time" else 16)
        begin = time.perf_counter()
        way(PEER_REQUESTS[name])
        rates[name] = PEER_REQUESTS[name] * 64 / (time.perf_counter() - begin)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=["a", "b", "c", "d", "transformers"])
    only = parser.parse_args().only
    machine = quire_bench(["machine"])
    read = 1e9 * float(machine["read_gb_s"])
    print(f"read {read / 1e9:.1f} GB/s; load {os.getloadavg()[0]:.2f}")
    found: dict[str, Any] = {"machine": machine, "rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        vocabulary = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
        empty = {"version": "1.0", "added_tokens": [], "model": vocabulary}
        (Path(folder) / "tokenizer.json").write_text(json.dumps(empty))
        for name in (row for row in "abcd" if row in only):
            for kind in ENGINE:
                measured, best = workload(name, folder, kind), limit(name, kind, machine, read)
                share = best / measured if name == "d" else measured / best
                found["rows"][f"{name} {kind}"] = {"measured": measured, "limit": best, "share": share}
                unit = "ms" if name == "d" else "tokens/s"
                print(f"{name} {kind:8} {measured:9.1f} {unit}, limit {best:9.1f}, share {share:.2f}", flush=True)
    if "transformers" in only:
        found["transformers"] = transformers_rates()
        for way, rate in found["transformers"].items():
            print(f"b transformers, {way}: {rate:.1f} tokens/s", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
