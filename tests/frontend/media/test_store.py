"""The folder of decoded images keeps to its bound, and to what requests refer to."""

import random
from pathlib import Path

import pytest

from quire.frontend.media.store import MediaStore, StoredMedia, StoreFull, stored_cost

COST = stored_cost(4000)


class Filling:
    """A store for so many items, and its items by number."""

    def __init__(self, folder: Path, most: int) -> None:
        self.store = MediaStore(folder / "0-a", most * COST)
        self.folder = self.store.folder

    def add(self, number: int, key: bytes = b"") -> None:
        part = self.folder / "0.part"
        part.write_bytes(bytes([number]) * 4000)
        digest = self.digest(number)
        item = StoredMedia(digest, (1, 2, 2), 1, self.store.folder.name, 4000)
        self.store.add(part, item, key or b"key of " + digest)

    def digest(self, number: int) -> bytes:
        return bytes([number]) * 32

    def files(self) -> set[int]:
        """Numbers of the items whose files are here, whole."""
        for file in self.folder.iterdir():
            assert file.read_bytes() == bytes.fromhex(file.name)[:1] * 4000
        return {bytes.fromhex(file.name)[0] for file in self.folder.iterdir()}


@pytest.fixture
def three(tmp_path: Path) -> Filling:
    return Filling(tmp_path, 3)


def test_what_was_used_longest_ago_makes_room(three: Filling) -> None:
    for number in (1, 2, 3):
        three.add(number)
        three.store.release(three.digest(number))
    assert three.store.take(three.digest(1)) is not None
    three.store.release(three.digest(1))
    three.add(4)
    assert three.files() == {1, 3, 4}
    assert three.store.take(three.digest(2)) is None
    assert three.store.take_by_key(b"key of " + three.digest(2)) is None
    assert three.store.num_evicted == 1


def test_what_a_request_refers_to_is_never_removed(three: Filling) -> None:
    for number in (1, 2, 3):
        three.add(number)
    with pytest.raises(StoreFull) as caught:
        three.add(4)
    assert caught.value.cost == COST
    assert three.files() == {1, 2, 3}
    three.store.release(three.digest(2))
    three.add(4)
    assert three.files() == {1, 3, 4}


def test_an_item_that_is_added_again_is_there_once(three: Filling) -> None:
    three.add(1)
    three.add(1)
    assert three.store.num_bytes == three.store.num_used_bytes == COST
    three.store.release(three.digest(1))
    assert three.store.num_used_bytes == COST
    three.store.release(three.digest(1))
    assert (three.store.num_bytes, three.store.num_used_bytes) == (COST, 0)
    assert three.files() == {1}


def test_an_item_is_found_by_each_of_its_files_up_to_a_bound(three: Filling) -> None:
    keys = [bytes([number]) for number in range(20)]
    for key in keys:
        three.add(1, key)
    found = [three.store.take_by_key(key) is not None for key in keys]
    assert found == [False] * 12 + [True] * 8


@pytest.mark.parametrize("seed", range(10))
def test_files_and_bytes_agree_after_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    filling = Filling(tmp_path, 5)
    references: list[int] = []
    for _ in range(300):
        number = chance.randrange(12)
        if chance.random() < 0.5 and references:
            number = references.pop(chance.randrange(len(references)))
            filling.store.release(filling.digest(number))
        elif filling.store.take(filling.digest(number)) is not None:
            references.append(number)
        else:
            try:
                filling.add(number)
                references.append(number)
            except StoreFull:
                assert len(set(references)) == 5
        files = filling.files()
        assert set(references) <= files
        assert filling.store.num_bytes == len(files) * COST <= 5 * COST
        assert filling.store.num_used_bytes == len(set(references)) * COST
    assert filling.store.make_place() == (files != set(references))
    assert filling.files() == set(references)


def test_files_are_their_owners_alone_and_gone_at_the_end(three: Filling) -> None:
    assert three.folder.stat().st_mode & 0o777 == 0o700
    three.add(1)
    three.store.close()
    assert not three.folder.exists()


def test_a_folder_belongs_to_one_life(three: Filling) -> None:
    with pytest.raises(FileExistsError):
        MediaStore(three.folder, COST)
