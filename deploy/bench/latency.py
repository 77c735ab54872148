"""`quire bench latency`: how long one batch takes, and how near its decode steps come to the limit of memory.

`prefill_ms` is the time from submitting the whole batch to the first token of its last prompt, scheduler included.
`decode_ms_per_step` is the time between two steps in which every sequence of the batch got a token.
`share_of_limit` is the time that reading the weights once takes at the read bandwidth measured in the same run, over
`decode_ms_per_step_p50`: 1 means that nothing but reading weights takes time. KV reads are not in the limit, and an
input embedding that is not tied to the output is not read as a whole, so it is left out. On CUDA the bandwidth is
the device's. Takes every option of `quire serve`.
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np

from quire.deploy.bench.bandwidth import read_bandwidth
from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.peer import EnginePeer, first_tokens, num_tokens, start_engine
from quire.deploy.bench.report.engine_config import changed
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure
from quire.deploy.bench.report.report import Figure, Outcome, percentile
from quire.deploy.flags.arguments import add_serve_arguments, gather
from quire.deploy.model_path import Model, resolve
from quire.proto.messages.requests import ModelFacts, Outputs

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="sequences in the batch")
    parser.add_argument("--input-len", type=int, default=128, metavar="N", help="prompt tokens of each")
    parser.add_argument("--output-len", type=int, default=64, metavar="N", help="tokens generated for each")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="batches measured, after one to warm up")


def run(args: argparse.Namespace) -> Outcome:
    for option, least in (("batch_size", 1), ("input_len", 1), ("output_len", 2), ("repeats", 1)):
        if getattr(args, option) < least:
            raise BenchError(f"--{option.replace('_', '-')}: must be at least {least}, got {getattr(args, option)}")
    given_model, options = gather(args)
    options = replace(options, max_num_seqs=max(options.max_num_seqs, args.batch_size))
    random = np.random.default_rng(options.seed)
    prefill: list[float] = []
    decode: list[float] = []
    with BenchProcesses() as processes:
        model = resolve(
            given_model, options.load_format, processes.run_dir.path, options.tokenizer, overrides=options.hf_overrides
        )
        start_engine(processes, options, model)
        peer = EnginePeer(processes)
        try:
            facts = peer.join(options.startup_timeout)
            for repeat in range(args.repeats + 1):
                prefill_ms, decode_ms = _one_batch(peer, facts, random, args)
                if repeat:
                    prefill.append(prefill_ms)
                    decode += decode_ms
        finally:
            peer.close()
        processes.stop()
        weight_bytes = weight_bytes_per_step(model, facts, options.tensor_parallel_size)
    bandwidth = _bandwidth(facts)
    step_ms = percentile(decode, 50)
    limit_ms = weight_bytes / bandwidth * 1e3
    figures: dict[str, Figure] = {
        "prefill_ms_p50": percentile(prefill, 50),
        "decode_ms_per_step_p50": step_ms,
        "share_of_limit": limit_ms / step_ms if step_ms else None,
        "decode_tokens_per_s": args.batch_size / step_ms * 1e3 if step_ms else None,
        "prefill_tokens_per_s": args.batch_size * args.input_len / float(np.median(prefill)) * 1e3,
        "weight_bytes_per_step": weight_bytes,
        "read_gb_s": bandwidth / 1e9,
        "limit_ms": limit_ms,
    }
    config = {
        "model": model.name,
        "batch_size": args.batch_size,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "repeats": args.repeats,
        "engine": changed(options),
        "device": facts.device,
        "dtype": facts.dtype,
    }
    return Outcome(figures, config, options.seed, {"prefill_ms": prefill, "decode_ms_per_step": decode})


def _one_batch(
    peer: EnginePeer, facts: ModelFacts, random: np.random.Generator, args: argparse.Namespace
) -> tuple[float, list[float]]:
    """Milliseconds until every sequence had its first token, and of each step between two full ones after that."""
    batch = [random.integers(0, facts.vocab_size, args.input_len).tolist() for _ in range(args.batch_size)]
    begin = time.monotonic()
    for token_ids in batch:
        peer.submit(token_ids, args.output_len)
    waiting = args.batch_size
    prefilled = begin
    full: list[float] = []
    while not peer.idle():
        message = peer.receive(0.1)
        if not isinstance(message, Outputs):
            continue
        now = time.monotonic()
        if waiting:
            waiting -= first_tokens(message)
            prefilled = now
        if not waiting and num_tokens(message) == args.batch_size:
            full.append(now)
    return (prefilled - begin) * 1e3, [(later - earlier) * 1e3 for earlier, later in pairwise(full)]


def weight_bytes_per_step(model: Model, facts: ModelFacts, num_ranks: int) -> int:
    """Bytes of weights that a decode step reads from one memory: all but an input embedding of its own.

    Facts are those of one rank. CPU ranks read the same memory, so theirs add up; a CUDA rank has a memory of its own.
    """
    config = json.loads((model.directory / "config.json").read_text())
    one_rank = facts.weight_bytes
    if not config.get("tie_word_embeddings", False):
        rows = -(-int(config["vocab_size"]) // num_ranks)
        one_rank -= rows * int(config["hidden_size"]) * ITEM_BYTES[facts.dtype]
    return one_rank * (num_ranks if facts.device == "cpu" else 1)


def _bandwidth(facts: ModelFacts) -> float:
    """Bytes per second at which the engine's kind of device reads memory, now that the engine has gone."""
    if facts.device == "cpu":
        return read_bandwidth()
    return float(str(measure("quire.worker.bench.roofline", {"device": "cuda", "rows": []})["read_bytes_per_s"]))
