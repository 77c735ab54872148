"""One rank of a tensor-parallel test, run as a program: prints what it generated and read, as JSON.

python tensor_parallel_rank.py RANK RENDEZVOUS_FOLDER PROMPTS_JSON NUM_DEALT MODEL_FOLDER...

It is a member of a group of four, and then, ranks 0 and 1 only, of a group of two. The experts of the last NUM_DEALT
models are dealt to the ranks.
"""

import json
import sys
from pathlib import Path

import torch
from conftest import Greedy

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import Group, connect
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import read_spec

CPU = torch.device("cpu")


def main() -> None:
    rank, rendezvous, prompts, num_dealt, *folders = sys.argv[1:]
    models = [(Path(folder), number >= len(folders) - int(num_dealt)) for number, folder in enumerate(folders)]
    results = {}
    for size in (4, 2):
        if int(rank) < size:
            groups = connect(int(rank), size, 1, CPU, str(Path(rendezvous) / str(size)), timeout_seconds=600.0)
            results[size] = [generate(groups.tensor, *model, json.loads(prompts)) for model in models]
            groups.close()
    json.dump(results, sys.stdout)


def generate(group: Group, folder: Path, is_dealt: bool, prompts: list[list[int]]) -> dict[str, object]:
    context = BuildContext(group, CPU, torch.float32, everywhere(DenseScheme()))
    loaded = load_model(folder, read_spec(folder, expert_parallel=is_dealt), context)
    rows = Greedy(loaded.model, group.size).generate(prompts, 24, chunk=32)
    embedded = Greedy(loaded.model, group.size, hides=True).generate(prompts, 4, chunk=32)
    return {
        "tokens": [row.tokens for row in rows],
        "tokens_of_embedded": [row.tokens for row in embedded],
        "bytes_read": loaded.bytes_read,
    }


if __name__ == "__main__":
    main()
