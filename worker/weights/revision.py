"""A cheap digest of a model's files: part of every prefix-cache key, and of what all ranks must agree on."""

import hashlib
from pathlib import Path
from typing import Final

SAMPLE_BYTES: Final = 1 << 16
CONFIGS: Final = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model.safetensors.index.json",
    "quantize_config.json",
)


def model_revision(folder: Path) -> str:
    """Hex digest over the names and bytes of the configs and, of each file of weights, name, size and samples.

    The samples are the file's first and last 64 KiB and 64 KiB at each sixteenth of its length: not all bytes of the
    weights, which would take as long as loading them. Two checkpoints that differ only elsewhere share a digest.
    """
    digest = hashlib.sha256()
    for name in CONFIGS:
        path = folder / name
        _add(digest, name.encode(), path.read_bytes() if path.exists() else b"")
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.gguf"))):
        size = path.stat().st_size
        _add(digest, path.name.encode(), str(size).encode())
        with path.open("rb") as file:
            for start in sorted({max(0, size - SAMPLE_BYTES), *(size * part // 16 for part in range(16))}):
                file.seek(start)
                _add(digest, file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *fields: bytes) -> None:
    """Length-prefixed, so that no two sequences of fields read alike."""
    for field in fields:
        digest.update(len(field).to_bytes(8, "little") + field)
