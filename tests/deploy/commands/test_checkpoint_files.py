"""Files beside config.json that anybody may have put there."""

import hashlib
from pathlib import Path

from quire.deploy.commands.checkpoint_files import SUMS, digest_faults, given_files

DIGEST, EMPTY = "0" * 64, hashlib.sha256(b"").hexdigest()


def test_a_directory_of_the_users_may_have_the_name_of_one_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "from-gguf"
    folder.mkdir()
    assert given_files(folder) == []
    (folder / "model.safetensors").touch()
    assert given_files(folder) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/proc/self/mem")
    (tmp_path / SUMS).write_text(f"{DIGEST}  a\n{DIGEST}  b\n")
    first, second = digest_faults(tmp_path)
    assert first == f"--digest: 'a' of {SUMS} cannot be read: Input/output error"
    assert second.startswith(f"--digest: 'b' of {SUMS} is not here")


def test_names_may_begin_at_the_directory_itself(tmp_path: Path) -> None:
    """As find writes them."""
    (tmp_path / "a.gguf").touch()
    (tmp_path / SUMS).write_text(f"{EMPTY}  ./a.gguf\n{DIGEST}  ./another.gguf\n")
    assert list(digest_faults(tmp_path, {"a.gguf"})) == []
    (tmp_path / "a.gguf").write_text("x")
    assert "'./a.gguf' is not the file" in next(digest_faults(tmp_path, {"a.gguf"}))


def test_no_text_of_others_steers_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J" + "a" * 200
    (tmp_path / name).touch()
    (tmp_path / "mem\a").symlink_to("/proc/self/mem")
    (tmp_path / SUMS).write_text(f"{DIGEST}  {name}\n{DIGEST}  \x1b[31mabsent\n{DIGEST}  mem\a\n")
    faults = list(digest_faults(tmp_path))
    assert all(fault.isprintable() and len(fault) < 200 for fault in faults)
    for words, fault in zip(("is not the file", "is not here", "cannot be read"), faults, strict=True):
        assert words in fault
