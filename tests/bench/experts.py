"""Decoding a model of experts on this machine's cores beside the bytes that it must read, and beside transformers.

    python tests/bench/experts.py [--turns 3] [--dtype bfloat16] [--threads N]

The model is Qwen3-30B-A3B's shape scaled down to about 100 M parameters that a token meets: 12 layers of 128 experts,
8 for each token, random weights. In a turn come the machine's read bandwidth, a sequence that decodes alone, 16 that
decode together, and the same 16 by transformers; everything runs in this process, ours by a worker's own runner, in a
worker's environment: the weights lie in huge pages, and so does what is read for the bandwidth. What else the machine
does slows all of a turn, so shares and ratios are of a turn's own figures. Prints each turn and, last, one JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))

from peers.steps import BLOCK_SIZE, LENGTH, SEQUENCES, STEPS, run

from quire.deploy.bench.report.report import commit, machine
from quire.deploy.supervisor.process import WORKER_ENVIRONMENT
from quire.kernels.bench.ceilings import measure
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.step.runner import Runner

SHAPE: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CONTEXT, TOGETHER, REPEATS = 140, 16, 20


def model_of(dtype: torch.dtype) -> Any:
    """Random weights, the same each time."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SHAPE, dtype=dtype)
    return transformers.Qwen3MoeForCausalLM(config).to(dtype).eval()


def active_parameters(model: Any) -> int:
    """Of a token that decodes: everything but the experts that it is not sent to."""
    of_experts = sum(value.numel() for name, value in model.named_parameters() if ".experts." in name)
    idle = of_experts * (SHAPE["num_experts"] - SHAPE["num_experts_per_tok"]) // SHAPE["num_experts"]
    return sum(value.numel() for value in model.parameters()) - idle


def decoder_of(model: Any) -> Callable[[], None]:
    """A step of `TOGETHER` sequences by transformers; each is longer by a token than the last."""
    cache = transformers.DynamicCache(config=model.config)
    prompts = torch.randint(1, SHAPE["vocab_size"], (TOGETHER, CONTEXT))
    last = [model(prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)]

    def step() -> None:
        last[0] = model(last[0], past_key_values=cache).logits[:, -1:].argmax(-1)

    return step


def milliseconds(step: Callable[[], None]) -> float:
    taken = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        step()
        taken.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(taken)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), metavar="N")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    model = model_of(dtype)
    active = active_parameters(model) * dtype.itemsize
    turns = []
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        config = WorkerConfig(
            model=name,
            device="cpu",
            dtype=args.dtype,
            num_threads=args.threads,
            max_num_seqs=SEQUENCES,
            max_model_len=LENGTH,
            block_size=BLOCK_SIZE,
            log_level="error",
        )
        runner = start(config, 0, Device("cpu", 0), Groups).executor
        assert isinstance(runner, Runner)
        for _ in range(args.turns):
            read = measure(torch.device("cpu"), dtype, 0.5).read_bytes_per_second
            alone = statistics.median(run(runner, STEPS["decode 1"]))
            together = statistics.median(run(runner, STEPS["decode 16"]))
            theirs = milliseconds(decoder_of(model))
            turns.append(
                {
                    "read_gb_s": read / 1e9,
                    "alone_ms": alone,
                    "share_of_read": active / read / (alone / 1e3),
                    "together_ms": together,
                    "transformers_ms": theirs,
                    "over_transformers": theirs / together,
                }
            )
            print({key: round(value, 2) for key, value in turns[-1].items()}, flush=True)
    found = {"machine": machine(), "commit": commit(), "active_bytes": active, "threads": args.threads}
    print(json.dumps(found | {"dtype": args.dtype, "turns": turns}))


if __name__ == "__main__":
    if not WORKER_ENVIRONMENT.items() <= os.environ.items():  # the C library reads it when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | WORKER_ENVIRONMENT)
    main()
