"""What Triton has compiled, as one file that travels between machines.

Only what a machine needs to run a kernel is kept: binaries, launchers and their descriptions. The descriptions name
their files by absolute paths, which become those of the machine that reads them.
"""

import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

KEPT = (".json", ".cubin", ".so")


def folder() -> Path:
    """Where Triton looks."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def read(path: Path) -> None:
    """Unpack `path` where Triton looks. Without that file there is nothing to read: the first run writes it."""
    if not path.exists():
        print(f"triton cache: {path} is not there yet")
        return
    root = folder()
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as archive:
        archive.extractall(root, filter="data")
        names = [member.name for member in archive if member.isfile()]
    for name in names:
        if Path(name).name.startswith("__grp__"):
            _resettle(root / name)
    print(f"triton cache: {len(names)} files of {path}")


def _resettle(description: Path) -> None:
    """Its files lie beside it."""
    found = json.loads(description.read_text())
    beside = {name: str(description.parent / name) for name in found["child_paths"]}
    description.write_text(json.dumps({"child_paths": beside}))


def save(path: Path | None) -> None:
    """Pack what is there into `path`, and into $OUT where that is set; whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}")
    count = 0
    with tarfile.open(fresh, "w:gz", compresslevel=6) as archive:
        for file in _kept():
            content = file.read_bytes()
            member = tarfile.TarInfo(str(file.relative_to(folder())))
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
            count += 1
    fresh.rename(path)
    if out := os.environ.get("OUT"):
        shutil.copyfile(path, Path(out) / path.name)
    print(f"triton cache: {count} files, {path.stat().st_size / 1e6:.1f} MB in {path}", flush=True)


def _kept() -> Iterator[Path]:
    for file in sorted(folder().glob("*/*")):
        if file.suffix in KEPT and file.is_file() and ".tmp." not in str(file.parent):
            yield file
