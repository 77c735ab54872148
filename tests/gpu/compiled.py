"""What Triton has compiled, as one file that travels between machines.

Only what a machine needs to run a kernel is kept: binaries, launchers and their descriptions. The descriptions name
their files by absolute paths, which become those of the machine that reads them.
"""

import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

KEPT = (".json", ".cubin", ".so")
MOST_BYTES = 16 << 20
"""Of the archive: more does not come back from a machine, or goes to one."""
HEADER_BYTES = 512


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
    """Pack what is there into `path`, and into $OUT where that is set; whole or not at all.

    What cannot be written is said: what the parts found matters more. Of more than MOST_BYTES the largest are left out.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}")
        count, left_out = _pack(fresh)
        fresh.rename(path)
        if out := os.environ.get("OUT"):
            shutil.copyfile(path, Path(out) / path.name)
        size = path.stat().st_size
    except OSError as error:
        print(f"triton cache: not kept: {error}", flush=True)
        return
    print(f"triton cache: {count} files, {size / 1e6:.1f} MB in {path}", flush=True)
    if left_out:
        print(f"triton cache: {len(left_out)} kernels of {sum(left_out) / 1e6:.1f} MB did not fit", flush=True)


def _pack(path: Path) -> tuple[int, list[int]]:
    """Files in the archive, and bytes of each kernel that was left out: a kernel is a folder, whole or not there."""
    kernels: dict[Path, list[tuple[Path, bytes]]] = {}
    for file in _kept():
        kernels.setdefault(file.parent, []).append((file, file.read_bytes()))
    sizes = {folder: sum(len(content) for _, content in files) for folder, files in kernels.items()}
    packed, count, left_out = 0, 0, []
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        for parent in sorted(kernels, key=lambda one: (sizes[one], one)):
            # as large as it will be, and what a header may take
            packed += sum(len(zlib.compress(content, 6)) + HEADER_BYTES for _, content in kernels[parent])
            if packed > MOST_BYTES:
                left_out.append(sizes[parent])
                continue
            for file, content in kernels[parent]:
                member = tarfile.TarInfo(str(file.relative_to(folder())))
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
                count += 1
    return count, left_out


def _kept() -> Iterator[Path]:
    for file in sorted(folder().glob("*/*")):
        if file.suffix in KEPT and file.is_file() and ".tmp." not in str(file.parent):
            yield file
