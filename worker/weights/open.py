"""Opens the checkpoint in a folder, whatever its format."""

from pathlib import Path

from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.gguf.checkpoint import GgufCheckpoint
from quire.worker.weights.gguf.files import is_gguf


def open_checkpoint(folder: Path) -> Checkpoint | GgufCheckpoint:
    """A context manager, and a source of weights. Raises CheckpointError."""
    return GgufCheckpoint(folder) if is_gguf(folder) else Checkpoint(folder)
