"""`quire bench offline`: the throughput of one engine that is given every prompt at once.

Scheduler and workers run as in production; the bench takes the place of the frontends, so text and gRPC cost nothing.
Takes every option of `quire serve`. `kv_waste_share` is the share of reserved KV slots without a token in them,
sampled while at least nine tenths of the most sequences ever running were running.
"""

import argparse
import subprocess
import time
from dataclasses import replace

from quire.deploy.bench.load import prompts
from quire.deploy.bench.load.bench_processes import BenchProcesses, peak_resident_bytes
from quire.deploy.bench.peer import EnginePeer, num_tokens, start_engine
from quire.deploy.bench.report.engine_config import changed
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.report import Figure, Outcome
from quire.deploy.flags.arguments import add_serve_arguments, gather
from quire.deploy.model_path import resolve
from quire.proto.messages.introspection import EngineLoad, LoadReply
from quire.proto.messages.requests import ModelFacts, Outputs

SAMPLE_SECONDS = 0.2
BUSY_SHARE = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    prompts.add_arguments(parser, num_prompts=64)


def run(args: argparse.Namespace) -> Outcome:
    given_model, options = gather(args)
    options = replace(options, max_num_queued_reqs=max(options.max_num_queued_reqs, args.num_prompts + 1))
    before = device_bytes_in_use()
    with BenchProcesses() as processes:
        model = resolve(
            given_model, options.load_format, processes.run_dir.path, options.tokenizer, overrides=options.hf_overrides
        )
        workers = start_engine(processes, options, model)
        peer = EnginePeer(processes)
        try:
            facts = peer.join(options.startup_timeout)
            drawn = prompts.draw(args, vocab_size=facts.vocab_size, seed=options.seed)
            seconds, tokens, loads = _drive(peer, drawn)
            memory = _peak_memory(facts, workers, before)
        finally:
            peer.close()
        processes.stop()
    num_prompt_tokens = sum(len(prompt.token_ids) for prompt in drawn)
    expected = sum(prompt.output_len for prompt in drawn)
    if tokens != expected:
        raise BenchError(f"{expected} tokens were asked for and {tokens} came")
    figures: dict[str, Figure] = {
        "output_tokens_per_s": tokens / seconds,
        "total_tokens_per_s": (tokens + num_prompt_tokens) / seconds,
        "requests_per_s": len(drawn) / seconds,
        "peak_memory_bytes": memory,
        "kv_waste_share": kv_waste_share(loads),
        "seconds": seconds,
        "num_preemptions": loads[-1].num_preemptions if loads else None,
        "prefix_hits": loads[-1].prefix_hits if loads else None,
    }
    config = {
        "model": model.name,
        "num_prompts": args.num_prompts,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "shared_prefix": args.shared_prefix,
        "engine": changed(options),
        "device": facts.device,
        "dtype": facts.dtype,
    }
    return Outcome(figures, config, options.seed, {"num_running": [float(load.num_running) for load in loads]})


def _drive(peer: EnginePeer, drawn: list[prompts.Prompt]) -> tuple[float, int, list[EngineLoad]]:
    """Seconds from the first submission to the last finish, tokens received, and what the scheduler held meanwhile."""
    peer.submit(drawn[0].token_ids[:1], 2)
    while not peer.idle():
        peer.receive(0.1)
    tokens = 0
    loads: list[EngineLoad] = []
    begin = time.monotonic()
    next_sample = begin
    for prompt in drawn:
        peer.submit(prompt.token_ids, prompt.output_len)
    while not peer.idle():
        if time.monotonic() >= next_sample:
            next_sample = time.monotonic() + SAMPLE_SECONDS
            peer.ask_load()
        message = peer.receive(0.1)
        if isinstance(message, Outputs):
            tokens += num_tokens(message)
        elif isinstance(message, LoadReply):
            loads.append(message.load)
    return time.monotonic() - begin, tokens, loads


def kv_waste_share(loads: list[EngineLoad]) -> float | None:
    """Mean of `1 - used_slots_share` over the samples near the most sequences running; None when nothing ran."""
    most = max((load.num_running for load in loads), default=0)
    busy = [1.0 - load.used_slots_share for load in loads if most and load.num_running >= BUSY_SHARE * most]
    return sum(busy) / len(busy) if busy else None


def device_bytes_in_use() -> int:
    """Memory in use on all NVIDIA devices; 0 where there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return 0
    return sum(int(line) << 20 for line in done.stdout.split()) if done.returncode == 0 else 0


def _peak_memory(facts: ModelFacts, workers: list[int], before: int) -> int:
    """The workers' peak resident memory on a CPU; else the device memory taken since `before`, which torch keeps."""
    if facts.device == "cpu":
        return sum(peak_resident_bytes(pid) for pid in workers)
    return device_bytes_in_use() - before
