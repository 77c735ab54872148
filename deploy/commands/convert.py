"""`quire convert DIR OUT`: a checkpoint of pickled weights as one of safetensors, which `quire serve` takes."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from quire.deploy.flags.arguments import UsageError
from quire.deploy.hub import fetch, read_id
from quire.proto.process.sizes import format_bytes
from quire.proto.process.visible import visible

DESCRIPTION = (
    "Read pytorch_model.bin, or the files that pytorch_model.bin.index.json names, and write the same weights as "
    "safetensors, beside copies of the config and the tokenizer. A pickle can run code, so it is read for weights "
    "alone, in a process of its own, and `quire serve` never reads one."
)
SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
FETCHED = ("pytorch_model*.bin", f"*/{SINGLE}")
COPIED = ("*.json", "*.model", "*.txt", "*.jinja", "*.md", "LICENSE*", "*/config.json", "*/model.safetensors")
"""Files beside the weights: data only."""
MOST_SHARDS = 4096
MODULE = "quire.worker.weights.convert"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="folder with config.json and pytorch_model.bin, or a hub id")
    parser.add_argument("out", metavar="OUT", help="folder to make")


def run(arguments: argparse.Namespace) -> int:
    """0 when OUT is there. Raises `UsageError` for what cannot be converted; nothing is left of OUT then."""
    directory, out = _directory(arguments.directory), Path(arguments.out).expanduser()
    sources = weights_of(directory)
    if out.exists() or out.is_symlink():
        raise UsageError(f"OUT {out}: is there already; name a folder that is not")
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"OUT {partial}: is there of another conversion; remove it when none runs") from None
    except OSError as error:
        raise UsageError(f"OUT {partial}: cannot be made: {error.strerror}") from error
    try:
        converted = _converted(sources, partial)
        _convert_stages(directory, partial)
        _copy(directory, partial)
        partial.rename(out)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"OUT {out}: cannot be written: {error}") from error
        raise
    size = format_bytes(converted["num_bytes"])
    print(visible(f"{out}: {converted['num_tensors']} tensors, {size}; try `quire doctor {out}`"))
    return 0


def _directory(given: str) -> Path:
    """The folder; that of a hub id is fetched. Raises `UsageError`."""
    path = Path(given).expanduser()
    if path.exists() or (hub_id := read_id(given)) is None:
        return path
    return fetch(hub_id, (*FETCHED, *COPIED), with_weights=True).path


def weights_of(directory: Path) -> list[Path]:
    """The files with the pickled weights. Raises `UsageError`."""
    if not (directory / "config.json").is_file():
        raise UsageError(f"DIR {directory}: has no config.json; give the folder of a checkpoint in Hugging Face layout")
    if list(directory.glob("*.safetensors")):
        raise UsageError(f"DIR {directory}: has *.safetensors already; serve it as it is")
    if (directory / INDEX).is_file():
        names = _shards(directory / INDEX)
    else:
        names = [SINGLE]
    sources = [directory / name for name in names]
    for source in sources:
        if not source.is_file():
            raise UsageError(f"DIR {directory}: {source.name[:80]!r} is missing; fetch it again")
    return sources


def _shards(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
        if not 1 <= len(names) <= MOST_SHARDS or any(Path(name).name != name for name in names):
            raise ValueError("its files are not files of this folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{index}: is no index of weights: {str(error)[:200]}; fetch it again") from error
    return names


def _converted(sources: list[Path], folder: Path) -> dict[str, Any]:
    """The child's answer. Only its imports are left of the environment. Raises `UsageError`."""
    asked = json.dumps({"sources": [str(source.absolute()) for source in sources], "folder": str(folder.absolute())})
    paths = ":".join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", MODULE, asked]
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, check=False, env={"PYTHONPATH": paths}
    )
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"DIR {sources[0].parent}: the process that reads the weights ended: {last[:300]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer["refusal"]:
        raise UsageError(f"DIR: {answer['refusal']}")
    return answer


def _convert_stages(directory: Path, folder: Path) -> None:
    """Write the weights of stages of sentence-transformers, which lie in folders of their own. Raises `UsageError`."""
    for source in sorted(directory.glob(f"*/{SINGLE}")):
        if (source.parent / "config.json").is_file() and not list(source.parent.glob("*.safetensors")):
            made = folder / source.parent.name
            made.mkdir()
            _converted([source], made)


def _copy(directory: Path, folder: Path) -> None:
    """Copy what stands beside the weights, of names that are not taken."""
    for pattern in COPIED:
        for source in sorted(directory.glob(pattern)):
            target = folder / source.relative_to(directory)
            is_ours = source.parent == directory or not source.parent.samefile(folder)  # OUT may be in DIR
            if source.is_file() and is_ours and source.name != INDEX and not target.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
