"""Synthetic requests: random token ids of given lengths, behind a shared prefix."""

import argparse
from dataclasses import dataclass

import numpy as np

from quire.deploy.bench.load.loops import lengths
from quire.deploy.bench.report.errors import BenchError


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    output_len: int


def add_arguments(parser: argparse.ArgumentParser, *, num_prompts: int) -> None:
    parser.add_argument("--num-prompts", type=int, default=num_prompts, metavar="N", help="requests in all")
    parser.add_argument("--input-len", default="128", metavar="N|MIN:MAX", help="prompt tokens after the shared prefix")
    parser.add_argument("--output-len", default="64", metavar="N|MIN:MAX", help="tokens generated for each")
    parser.add_argument("--shared-prefix", type=int, default=0, metavar="L", help="tokens every prompt begins with")


def draw(
    args: argparse.Namespace, *, vocab_size: int, seed: int | tuple[int, ...], count: int | None = None
) -> list[Prompt]:
    """`count` prompts, None: `args.num_prompts`, of ids in [0, vocab_size), the same for the same seed.

    Raises `BenchError` for impossible lengths.
    """
    count = args.num_prompts if count is None else count
    if count < 1:
        raise BenchError(f"--num-prompts: must be at least 1, got {count}")
    if args.shared_prefix < 0:
        raise BenchError(f"--shared-prefix: must not be negative, got {args.shared_prefix}")
    random = np.random.default_rng(seed)
    prefix = random.integers(0, vocab_size, args.shared_prefix).tolist()
    inputs = lengths(args.input_len, count, random, "--input-len")
    outputs = lengths(args.output_len, count, random, "--output-len")
    return [
        Prompt(prefix + random.integers(0, vocab_size, input_len).tolist(), output_len)
        for input_len, output_len in zip(inputs, outputs, strict=True)
    ]
