"""One of two ranks that share modules of the transformers library, run as a program: prints what it made and read:
tokens, and last hidden states of an encoder.

python library_rank.py RANK RENDEZVOUS_FOLDER PROMPTS_JSON MODEL_FOLDER...
"""

import json
import sys
from pathlib import Path

import torch
from conftest import Greedy

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import connect
from quire.worker.models.build import describe, load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import read_spec

SIZE = 2


def main() -> None:
    rank, rendezvous, prompts, *folders = sys.argv[1:]
    groups = connect(int(rank), SIZE, 1, torch.device("cpu"), str(Path(rendezvous) / "ranks"), timeout_seconds=600.0)
    context = BuildContext(groups.tensor, torch.device("cpu"), torch.float32, everywhere(DenseScheme()))
    found = []
    for folder in folders:
        loaded = load_model(Path(folder), read_spec(Path(folder), impl="transformers", describe=describe), context)
        engine = Greedy(loaded.model, SIZE)
        if loaded.model.spec.looks_ahead:
            made = engine.states(json.loads(prompts)).tolist()
        else:
            made = [row.tokens for row in engine.generate(json.loads(prompts), 8, chunk=32)]
        found.append({"made": made, "bytes_read": loaded.bytes_read})
    groups.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
