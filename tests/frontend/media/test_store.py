"""The folder of decoded images keeps to its bound, and to what requests refer to."""

import random
from pathlib import Path

import pytest

from quire.frontend.media import store
from quire.frontend.media.store import MediaStore, StoredMedia, StoredPart, StoreFull, stored_cost
from quire.frontend.metrics.metrics import Metrics

COST = stored_cost(4000)


class Filling:
    """A store for so many items, and its items by number."""

    def __init__(self, folder: Path, most: int) -> None:
        self.metrics = Metrics()
        self.store = MediaStore(folder / "0-a", most * COST, self.metrics)
        self.folder = self.store.folder

    def counted(self) -> dict[str, float]:
        """What the metrics say of the store."""
        names = ("queries", "hits", "evictions")
        found = {sample.name: sample.value for sample in self.metrics.samples()}
        return {name: found[f"media_store_{name}_total"] for name in names}

    def add(self, number: int, key: bytes = b"") -> None:
        part = self.folder / "0.part"
        part.write_bytes(bytes([number]) * 4000)
        self.store.add([part], StoredPart((self.item(number),)), key or self.key(number))

    def add_many(self, *numbers: int) -> None:
        """One part of so many items."""
        parts = [self.folder / f"0.part.{index}" for index in range(len(numbers))]
        for part, number in zip(parts, numbers, strict=True):
            part.write_bytes(bytes([number]) * 4000)
        self.store.add(parts, StoredPart(tuple(map(self.item, numbers))), bytes(numbers))

    def item(self, number: int) -> StoredMedia:
        return StoredMedia(self.digest(number), (1, 2, 2), 1, self.store.folder.name, 4000)

    def digest(self, number: int) -> bytes:
        return bytes([number]) * 32

    def key(self, number: int) -> bytes:
        return b"key of " + self.digest(number)

    def release(self, *numbers: int) -> None:
        self.store.release(StoredPart(tuple(map(self.item, numbers))))

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
        three.release(number)
    assert three.store.take(three.key(1)) is not None
    three.release(1)
    three.add(4)
    assert three.files() == {1, 3, 4}
    assert three.store.take(three.key(2)) is None
    assert three.counted() == {"queries": 2, "hits": 1, "evictions": 1}


def test_what_a_request_refers_to_is_never_removed(three: Filling) -> None:
    for number in (1, 2, 3):
        three.add(number)
    with pytest.raises(StoreFull) as caught:
        three.add(4)
    assert caught.value.cost == COST
    assert three.files() == {1, 2, 3}
    three.release(2)
    three.add(4)
    assert three.files() == {1, 3, 4}


def test_an_item_that_is_added_again_is_there_once(three: Filling) -> None:
    three.add(1)
    three.add(1)
    assert three.store.num_bytes == three.store.num_used_bytes == COST
    three.release(1)
    assert three.store.num_used_bytes == COST
    three.release(1)
    assert (three.store.num_bytes, three.store.num_used_bytes) == (COST, 0)
    assert three.files() == {1}


def test_a_part_is_found_by_each_of_its_files_up_to_a_bound(three: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_PARTS", 8)
    keys = [bytes([number]) for number in range(20)]
    for key in keys:
        three.add(1, key)
    three.add(1, keys[19])
    assert [three.store.take(key) is not None for key in keys] == [False] * 12 + [True] * 8


def test_a_part_is_there_with_all_its_items_or_not_at_all(three: Filling) -> None:
    three.add_many(1, 2, 1)
    assert three.store.num_used_bytes == 2 * COST
    three.release(1, 2, 1)
    assert three.store.num_used_bytes == 0
    assert [item.digest[0] for item in three.store.take(bytes([1, 2, 1])).items] == [1, 2, 1]
    three.release(1, 2, 1)
    three.add(3)
    three.add_many(2, 4)  # the first item makes room
    assert three.store.take(bytes([1, 2, 1])) is None
    assert three.files() == {2, 3, 4}
    three.release(2, 4)
    three.add_many(1, 2)  # 2 is shared, 4 makes room
    three.release(1, 2)
    assert three.store.take(bytes([2, 4])) is None
    assert three.store.take(bytes([1, 2])) is not None


def test_items_that_repeat_are_one_object_in_all_parts(three: Filling) -> None:
    three.add_many(1, 1, 1)
    three.add(1)
    found = [*three.store.take(bytes([1, 1, 1])).items, *three.store.take(three.key(1)).items]
    assert len({id(item) for item in found}) == 1


def test_places_in_all_parts_together_have_a_bound(three: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost memory that no byte of an item counts."""
    monkeypatch.setattr(store, "MAX_PART_ITEMS", 10)
    three.add_many(*[1] * 4)
    three.add_many(*[1] * 5)
    three.add_many(*[1] * 5)  # the same again: it takes the place of the other
    three.add(2)
    three.add_many(*[1] * 3)
    taken = [three.store.take(bytes([1] * number)) is not None for number in (4, 5, 3)]
    assert taken == [False, True, True]
    assert three.files() == {1, 2}


def test_a_part_without_room_leaves_nothing(three: Filling) -> None:
    three.add(1)
    three.add(2)
    with pytest.raises(StoreFull) as caught:
        three.add_many(3, 1, 4, 5)
    assert caught.value.cost == 4 * COST
    assert three.store.num_used_bytes == 2 * COST
    assert three.files() == {1, 2, 3}
    three.add_many(1, 4)
    assert three.files() == {1, 2, 4}


@pytest.mark.parametrize("seed", range(10))
def test_files_and_bytes_agree_after_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    filling = Filling(tmp_path, 5)
    references: list[int] = []
    for _ in range(300):
        number = chance.randrange(12)
        if chance.random() < 0.5 and references:
            number = references.pop(chance.randrange(len(references)))
            filling.release(number)
        elif filling.store.take(filling.key(number)) is not None:
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


def test_a_part_of_which_somebody_removed_a_file_leaves_nothing_behind(three: Filling) -> None:
    three.add(1)
    parts = [three.folder / f"0.part.{index}" for index in range(3)]
    for part, number in zip(parts, (1, 2, 3), strict=True):
        part.write_bytes(bytes([number]) * 4000)
    parts[1].unlink()
    with pytest.raises(FileNotFoundError):
        three.store.add(parts, StoredPart(tuple(map(three.item, (1, 2, 3)))), b"key")
    assert three.files() == {1}
    assert three.store.num_used_bytes == three.store.num_bytes == COST
    three.release(1)
    assert three.store.num_used_bytes == 0


def test_files_are_their_owners_alone_and_gone_at_the_end(three: Filling) -> None:
    assert three.folder.stat().st_mode & 0o777 == 0o700
    three.add(1)
    three.store.close()
    assert not three.folder.exists()


def test_a_folder_belongs_to_one_life(three: Filling) -> None:
    with pytest.raises(FileExistsError):
        MediaStore(three.folder, COST, Metrics())
