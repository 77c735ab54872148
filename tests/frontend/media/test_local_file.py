"""Files of the server: those below one folder, whatever their names, links and neighbours do."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from quire.frontend.media import local_file
from quire.frontend.media.local_file import LocalFiles
from quire.frontend.media.refused import MediaRefused

MOST = 1000
IMAGE = b"\x89PNG of pixels"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`open/`, which may be read, beside `secret/`."""
    inner = tmp_path / "open" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.png").write_bytes(IMAGE)
    (inner / "ü %?#.png").write_bytes(IMAGE)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.png").write_bytes(b"secret")
    return tmp_path / "open"


def read(folder: Path | str, url: str) -> bytes:
    async def main() -> bytes:
        files = LocalFiles(str(folder), MOST)
        try:
            return bytes(await files.read(url, 60))
        finally:
            files.close()

    return asyncio.run(main())


def refusal(folder: Path | str, url: str) -> str:
    with pytest.raises(MediaRefused) as caught:
        read(folder, url)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "file://{0}/inner/a.png",
        "file://localhost{0}/inner/a.png",
        "FILE:{0}//inner/./a.png",
        "file://{0}/inner/%C3%BC%20%25%3F%23.png",
        "file://{0}/inn%65r%2Fa.png",
    ],
)
def test_a_file_below_the_folder_is_read(folder: Path, url: str) -> None:
    assert read(folder, url.format(folder)) == IMAGE


def test_the_folder_itself_may_be_behind_a_link_and_is_named_as_the_operator_named_it(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert read(f"{link}/", f"file://{link}/inner/a.png") == IMAGE
    assert "not below" in refusal(link, f"file://{folder}/inner/a.png")


def test_without_a_folder_no_file_is_read(folder: Path) -> None:
    assert "allowed_local_media_path" in refusal("", f"file://{folder}/inner/a.png")


@pytest.mark.parametrize(
    "url",
    [
        "file://{0}/../secret/a.png",
        "file://{0}/inner/../inner/a.png",
        "file://{0}/%2e%2e/secret/a.png",
        "file://{0}/inner%2F..%2F..%2Fsecret%2Fa.png",
        "file://{0}er/a.png",
        "file://{0}",
        "file:///etc/passwd",
        "file:///proc/self/environ",
        "file://{0}/inner/a.png%00.png",
    ],
)
def test_what_is_not_below_the_folder_is_refused_alike(folder: Path, url: str) -> None:
    (folder.parent / "opener").mkdir()
    (folder.parent / "opener" / "a.png").write_bytes(b"secret")
    assert refusal(folder, url.format(folder)) == "is not below the folder that may be read (allowed_local_media_path)"


@pytest.mark.parametrize(
    "url",
    ["file://host{0}/inner/a.png", "file:inner/a.png", "file://{0}/inner/a.png?x", "file://{0}/inner/a.png#x", "file:"],
)
def test_a_url_of_another_form_or_host_is_refused(folder: Path, url: str) -> None:
    assert "file:///folder/image" in refusal(folder, url.format(folder))


def test_links_are_not_followed_not_even_inwards(folder: Path) -> None:
    (folder / "file").symlink_to(folder.parent / "secret" / "a.png")
    (folder / "near").symlink_to(folder / "inner" / "a.png")
    (folder / "way").symlink_to(folder.parent / "secret")
    (folder / "zero").symlink_to("/dev/zero")
    for name in ("file", "near", "way/a.png", "zero"):
        assert "no link below the folder is followed" in refusal(folder, f"file://{folder}/{name}")


def test_only_regular_files_are_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        for name in ("pipe", "socket", "inner"):
            assert "no regular file" in refusal(folder, f"file://{folder}/{name}")
    assert "no regular file" in refusal("/dev", "file:///dev/zero")


def test_sizes_are_bounded_and_what_is_missing_is_told(folder: Path) -> None:
    (folder / "full").write_bytes(bytes(MOST))
    (folder / "large").write_bytes(bytes(MOST + 1))
    (folder / "none").touch()
    assert read(folder, f"file://{folder}/full") == bytes(MOST)
    assert refusal(folder, f"file://{folder}/large") == "has 1001 bytes; 1 to 1000 are allowed"
    assert refusal(folder, f"file://{folder}/none") == "has 0 bytes; 1 to 1000 are allowed"
    assert "No such file" in refusal(folder, f"file://{folder}/missing")
    assert "Not a directory" in refusal(folder, f"file://{folder}/full/x")
    assert "File name too long" in refusal(folder, f"file://{folder}/{'x' * 300}")


@pytest.mark.parametrize("into", ["link", "pipe"])
def test_a_file_that_is_replaced_after_it_was_looked_at_gives_nothing_away(
    folder: Path, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(str(folder), MOST)
    file = folder / "inner" / "a.png"
    looked_at = os.stat

    def stat(*args: object, **kwargs: object) -> os.stat_result:
        found = looked_at(*args, **kwargs)
        file.unlink()
        if into == "link":
            file.symlink_to(folder.parent / "secret" / "a.png")
        else:
            os.mkfifo(file)
        return found

    monkeypatch.setattr(local_file.os, "stat", stat)
    with pytest.raises(MediaRefused, match="no link below" if into == "link" else "no regular file"):
        files._read([b"inner", b"a.png"], bool)


def test_a_folder_that_is_replaced_on_the_way_leads_nowhere_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def swapping(name: bytes, *args: object, **kwargs: object) -> int:
        if name == b"inner":
            (folder / "inner").rename(folder.parent / "moved")
            (folder / "inner").symlink_to(folder.parent / "secret")
        return opened(name, *args, **kwargs)

    monkeypatch.setattr(local_file.os, "open", swapping)
    with pytest.raises(NotADirectoryError):
        local_file._open_below(os.fsencode(folder), [b"inner", b"a.png"])


def test_no_descriptor_is_left(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(MOST + 1))
    before = len(os.listdir("/proc/self/fd"))
    for name in ("inner/a.png", "large", "missing", "inner/missing", "inner"):
        try:
            LocalFiles(str(folder), MOST)._read(name.encode().split(b"/"), bool)
        except MediaRefused:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", ["relative", "/nowhere/at/all", "/", "//", "/proc", "/proc/self", "/sys"])
def test_a_folder_that_cannot_be_opened_is_refused_at_the_start(path: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_local_media_path: .*; give"):
        LocalFiles(path, MOST)
