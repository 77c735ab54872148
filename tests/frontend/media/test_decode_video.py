"""Videos as items: frames that the model's rule names, with the pixels that Pillow makes of them; or refused."""

import io
import random
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageSequence

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import saved
from video_files import CODECS, animation, decoded, pictures, rate, video

from quire.frontend.media.decode import frames as frames_module
from quire.frontend.media.decode import video_file
from quire.frontend.media.decode.container import PACKET
from quire.frontend.media.decode.decode_child import answer
from quire.frontend.media.decode.decode_job import (
    Answer,
    Decoded,
    DecodeJob,
    DecodeSettings,
    DecodeSetup,
    Refused,
    item_file,
    job_head,
)
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos

BOUNDS = {"min_pixels": 4 * 32 * 32, "max_pixels": 512 * 32 * 32}
QWEN3 = Qwen3Videos(placeholder_id=8, patch=16, merge=2, **BOUNDS)
QWEN2 = Qwen2Videos(placeholder_id=8, patch=16, merge=2, **BOUNDS)
MAX_PIXELS = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Beginning of the files that pixels are written to."""
    return tmp_path / "0.part"


def taken(
    data: bytes | list[bytes],
    file: Path,
    rules: Qwen2Videos | Qwen3Videos = QWEN3,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = 1 << 30,
) -> Answer:
    images = QwenImages(placeholder_id=9, patch=16, merge=2, videos=rules, **BOUNDS)
    sizes = tuple(map(len, data)) if isinstance(data, list) else ()
    job = DecodeJob(DecodeSettings(images, "", "video"), sizes)
    whole = b"".join(data) if isinstance(data, list) else data
    return answer(job_head(job) + whole, DecodeSetup(str(file), max_pixels, max_bytes))


def items(data: bytes | list[bytes], file: Path, rules: Qwen2Videos | Qwen3Videos = QWEN3) -> list[np.ndarray]:
    """uint8 [frames, rows * patch, columns * patch, 3] of each item."""
    found = taken(data, file, rules)
    assert isinstance(found, Decoded), found
    assert len(found.seconds) == len(found.items)
    return [
        np.fromfile(item_file(str(file), index), np.uint8).reshape(
            item.grid[0], item.grid[1] * 16, item.grid[2] * 16, 3
        )
        for index, item in enumerate(found.items)
    ]


def refused(data: bytes | list[bytes], file: Path, **limits: int) -> str:
    found = taken(data, file, **limits)
    assert isinstance(found, Refused), found
    assert list(file.parent.iterdir()) == []
    return found.message


def check_frames(found: list[np.ndarray], frames: list[Image.Image], rules: Qwen2Videos | Qwen3Videos) -> None:
    """The items are these frames, two by two, resized by Pillow."""
    height, width = rules.size(len(frames), frames[0].height, frames[0].width)
    wanted = [np.asarray(frame.resize((width, height), Image.Resampling.BICUBIC)) for frame in frames]
    assert [len(item) for item in found] == [min(2, len(wanted) - at) for at in range(0, len(wanted), 2)]
    assert np.array_equal(np.concatenate(found), np.stack(wanted))


@pytest.mark.parametrize("rules", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(("number", "fps"), [(30, 10.0), (17, 30.0), (50, 7.5), (3, 25.0)])
def test_pixels_are_those_of_pillow_of_the_frames_that_the_rule_names(
    file: Path, rules: Qwen2Videos | Qwen3Videos, kind: str, number: int, fps: float
) -> None:
    data = video(pictures(number), kind, fps)
    check_frames(items(data, file, rules), decoded(data, rules.sample(number, rate(data))), rules)


def test_times_are_those_of_the_files_rate(file: Path) -> None:
    found = taken(video(pictures(40), fps=10.0), file)
    assert isinstance(found, Decoded)
    assert list(found.seconds) == QWEN3.seconds(QWEN3.sample(40, 10.0), 40, 10.0)
    assert [item.grid[0] for item in found.items] == [2, 2, 2, 2]


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_list_of_pictures_is_the_frames_that_the_rate_would_have_named(file: Path, number: int) -> None:
    frames = pictures(number)
    found = taken([saved(frame) for frame in frames], file)
    assert isinstance(found, Decoded)
    assert list(found.seconds) == QWEN3.seconds(range(number), number, 2.0)
    check_frames(items([saved(frame) for frame in frames], file), frames, QWEN3)
    some = QWEN3.with_settings({"num_frames": min(3, number)})
    check_frames(
        items([saved(frame) for frame in frames], file, some), [frames[at] for at in some.sample(number, 2.0)], some
    )


@pytest.mark.parametrize("format", ["WEBP", "PNG", "GIF"])
def test_an_animation_is_a_video_by_its_own_times(file: Path, format: str) -> None:
    frames = pictures(20)
    if format == "GIF":
        frames = [frame.quantize(64).convert("RGB") for frame in frames]
    data = animation(frames, format, 200)
    found = taken(data, file)
    assert isinstance(found, Decoded)
    assert list(found.seconds) == QWEN3.seconds(QWEN3.sample(20, 5.0), 20, 5.0)
    check_frames(items(data, file), [frames[at] for at in QWEN3.sample(20, 5.0)], QWEN3)


@pytest.mark.parametrize("brand", [b"avis", b"msf1", b"mif1"])
def test_an_animation_in_avif_is_one_too(file: Path, brand: bytes) -> None:
    """Its first brand may be a wider one."""
    data = animation(pictures(20), "AVIF", 200)
    data = data[:8] + brand + data[12:]
    found = taken(data, file)
    assert isinstance(found, Decoded)
    assert list(found.seconds) == QWEN3.seconds(QWEN3.sample(20, 5.0), 20, 5.0)
    with Image.open(io.BytesIO(data)) as image:
        shown = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    check_frames(items(data, file), [shown[at] for at in QWEN3.sample(20, 5.0)], QWEN3)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_an_animation_of_too_many_frames_is_refused_before_they_are_decoded(
    file: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """A frame of a GIF takes two dozen bytes."""
    monkeypatch.setattr(frames_module, "MAX_FRAMES", 12)
    data = animation(pictures(40), format)
    seeks: list[int] = []
    with Image.open(io.BytesIO(data)) as image:
        kind = type(image)
    seek = kind.seek
    monkeypatch.setattr(kind, "seek", lambda self, frame: seeks.append(frame) or seek(self, frame))
    wanted = "is an animation of more than 12 frames; send a shorter one, or a video's file"
    assert refused(data, file) == wanted
    assert len(seeks) <= 12 + 1


def test_frames_that_repeat_are_the_same_items(file: Path) -> None:
    found = taken([saved(Image.new("RGB", (64, 64), "red"))] * 6, file)
    assert isinstance(found, Decoded)
    assert len({item.digest for item in found.items}) == 1
    assert isinstance(one := taken([saved(Image.new("RGB", (64, 64), "red"))], file), Decoded)
    assert one.items[0].digest != found.items[0].digest


@pytest.mark.parametrize("kind", CODECS)
def test_a_file_that_is_cut_anywhere_is_refused(file: Path, kind: str) -> None:
    data = video(pictures(40, seed=3), kind)
    assert len(items(data, file))
    for one in file.parent.iterdir():
        one.unlink()
    for size in [*range(0, len(data), max(1 << 10, len(data) // 20)), len(data) - 1]:
        if kind == "ts" and size % PACKET == 0:
            size += 1  # what is cut between two packets is a shorter video
        assert "send" in refused(data[:size], file), size


@pytest.mark.sampled(14)
@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_get_an_answer_and_never_an_exception(file: Path, kind: str, seed: int) -> None:
    corrupt = random.Random(seed)
    data = bytearray(video(pictures(12, seed=seed), kind))
    for _ in range(6):
        for _ in range(corrupt.choice((1, 3, 30))):
            data[int(len(data) * corrupt.random() ** corrupt.choice((1, 4)))] = corrupt.randrange(256)
        taken(bytes(data), file)


PLAYLISTS = [
    b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile {}\n",
    b"<?xml version='1.0'?><MPD><Period><AdaptationSet><BaseURL>{}</BaseURL></AdaptationSet></Period></MPD>",
    b"[playlist]\nFile1={}\n",
]


@pytest.mark.parametrize("playlist", PLAYLISTS)
def test_no_file_leads_to_another_one(file: Path, tmp_path_factory: pytest.TempPathFactory, playlist: bytes) -> None:
    other = tmp_path_factory.mktemp("other") / "a.mp4"
    other.write_bytes(video(pictures(4)))
    data = playlist.replace(b"{}", str(other).encode())
    assert "is no video that is read here" in refused(data, file)
    disguised = b"\0\0\0\x08free" + data
    assert "send" in refused(disguised, file)


def test_what_is_no_video_is_refused_with_what_is(file: Path) -> None:
    for data in (b"", b"\0" * 400, saved(pictures(1)[0], "JPEG"), random.Random(1).randbytes(5000)):
        assert "MP4, MOV, WebM, Matroska, AVI, MPEG-TS, GIF, WEBP, PNG" in refused(data, file)


def test_a_bad_frame_of_a_list_is_refused_by_its_number(file: Path) -> None:
    good = [saved(frame) for frame in pictures(4)]
    assert "frame 2 is no picture that is read here: JPEG" in refused([*good[:2], b"no picture", *good[2:]], file)
    assert "frame 3 does not decode; send it whole" in refused([*good[:3], good[3][:400]], file)
    assert "frame 0 has 96 x 64 pixels; at most 600" in refused(good, file, max_pixels=600)


def test_a_video_of_more_items_than_a_prompt_may_have_is_refused(file: Path) -> None:
    many = msgspec.structs.replace(QWEN3, max_frames=10_000)
    found = taken([saved(Image.new("RGB", (32, 32)))] * 4100, file, many)
    assert found == Refused("has 2050 items; a prompt may have 2048; ask for fewer frames (fps, num_frames)")


def test_limits_are_named(file: Path) -> None:
    data = video(pictures(30))
    wanted = "has 96 x 64 pixels; at most 6000 are allowed; send a smaller video"
    assert refused(data, file, max_pixels=6000) == wanted
    assert "6 frames of it take" in refused(data, file, max_bytes=1000)
    assert "ask for fewer (fps, num_frames)" in refused(data, file, max_bytes=1000)
    few = msgspec.structs.replace(QWEN3, max_frames=4)
    found = taken([saved(frame) for frame in pictures(5)], file, few)
    assert found == Refused("has 5 frames; at most 4 are read; send fewer")
    mixed = [*pictures(2), *pictures(1, 64, 64)]
    assert "frame 2 has 64 x 64 pixels, the first one 96 x 64" in refused([saved(one) for one in mixed], file)
    assert "more than 200 times" in refused([saved(Image.new("L", (8000, 32)))], file)


def test_without_the_extra_files_are_refused_with_the_remedy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    video_file.opencv.cache_clear()
    try:
        assert "install quire[video]" in refused(video(pictures(4)), file)
        assert len(items([saved(frame) for frame in pictures(4)], file)) == 2
    finally:
        video_file.opencv.cache_clear()
