"""Image files as pixels: equal to transformers' where they are sound, refused where they are not."""

import io
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import ExifTags, Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import FORMATS, chunk, picture, png, saved

from quire.frontend.media.decode.decode_child import answer, image_items
from quire.frontend.media.decode.decode_job import (
    Answer,
    Decoded,
    DecodeJob,
    DecodeSettings,
    DecodeSetup,
    NotWritten,
    Refused,
    item_file,
    job_head,
)
from quire.frontend.media.decode.image import MAX_TEXT_BYTES, set_limits
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.view import Item, View, each_alone

FAMILY = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=4 * 32 * 32, max_pixels=64 * 32 * 32)
MEAN, STD = (0.5, 0.4, 0.6), (0.5, 0.6, 0.7)
MAX_PIXELS = 1 << 20
FORMATS_OF_MODE = {
    "1": ("PNG", "TIFF", "BMP"),
    "L": ("JPEG", "PNG", "BMP", "TIFF", "GIF"),
    "P": ("PNG", "GIF", "BMP", "TIFF"),
    "RGB": ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "AVIF"),
    "CMYK": ("JPEG", "TIFF"),
    "YCbCr": ("JPEG", "TIFF"),
}
ORACLE = Qwen2VLImageProcessorPil(
    patch_size=16,
    merge_size=2,
    size={"shortest_edge": FAMILY.min_pixels, "longest_edge": FAMILY.max_pixels},
    image_mean=MEAN,
    image_std=STD,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that pixels are written to; the limits of the process that does so hold."""
    set_limits()
    return tmp_path_factory.mktemp("store") / "0.part"


def taken(data: bytes, file: Path, max_pixels: int = MAX_PIXELS) -> Answer:
    return answer(job_head(DecodeJob(DecodeSettings(FAMILY, ""))) + data, DecodeSetup(str(file), max_pixels, 1 << 30))


def pixels(data: bytes, file: Path) -> np.ndarray:
    """uint8 [rows * patch, columns * patch, 3] of an image that is taken."""
    found = taken(data, file)
    assert isinstance(found, Decoded), found
    (item,) = found.items
    written = Path(item_file(str(file), 0))
    assert written.stat().st_size == item.num_bytes
    assert written.stat().st_mode & 0o777 == 0o600
    _, rows, columns = item.grid
    return np.frombuffer(written.read_bytes(), np.uint8).reshape(rows * FAMILY.patch, columns * FAMILY.patch, 3)


def refused(data: bytes, file: Path, max_pixels: int = MAX_PIXELS) -> str:
    found = taken(data, file, max_pixels)
    assert isinstance(found, Refused), found
    return found.message


def patches(values: np.ndarray) -> np.ndarray:
    """float32 [patches, 3 * 2 * patch * patch] of pixels: a table of bytes for each channel, then tokens' squares."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    image = np.stack([table[values[..., channel]] for channel, table in enumerate(tables)])
    side, rows, columns = FAMILY.patch, values.shape[0] // FAMILY.patch, values.shape[1] // FAMILY.patch
    squares = image.reshape(3, rows // 2, 2, side, columns // 2, 2, side).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(squares[:, :, :, :, :, None], 2, axis=5).reshape(rows * columns, -1)


@examples(60)
@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from(sorted(FORMATS_OF_MODE)), st.integers(0, 5))
@example(1, 1, "RGB", 0)
@example(1, 200, "RGB", 1)
@example(400, 2, "L", 0)
@example(64, 64, "RGB", 0)
@example(256, 256, "RGB", 0)
@example(257, 256, "RGB", 1)
@example(96, 32, "P", 0)
def test_pixels_are_bit_by_bit_those_of_transformers(
    file: Path, width: int, height: int, mode: str, which: int
) -> None:
    width, height = max(width, -(-height // 200)), max(height, -(-width // 200))
    data = saved(picture(mode, width, height), FORMATS_OF_MODE[mode][which % len(FORMATS_OF_MODE[mode])])
    wanted = ORACLE(images=[Image.open(io.BytesIO(data))], return_tensors="np")
    found = pixels(data, file)
    assert (1, found.shape[0] // 16, found.shape[1] // 16) == tuple(wanted["image_grid_thw"][0])
    assert np.array_equal(patches(found), wanted["pixel_values"])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_what_is_transparent_is_over_white(file: Path, mode: str) -> None:
    image = picture(mode, 64, 64)
    options = {}
    if mode == "RGB":
        options["transparency"] = image.getpixel((3, 3))
    elif mode == "P":
        options["transparency"] = bytes(range(256))
    clear = Image.open(io.BytesIO(saved(image, **options))).convert("RGBA")
    wanted = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    found = pixels(saved(image, **options), file).astype(int)
    assert np.abs(found - np.asarray(wanted).astype(int)).max() <= 1  # two ways to round
    assert not np.array_equal(found, pixels(saved(clear.convert("RGB")), file))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_images_are_upright_by_exif(file: Path, orientation: int, format: str) -> None:
    """The camera's image with each orientation is the image that it saw."""
    seen = Image.new("RGB", (96, 64), "blue")
    seen.paste("red", (0, 0, 48, 32))
    seen.paste("lime", (48, 0, 96, 32))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = seen.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else seen
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    found = pixels(saved(stored, format, exif=exif, quality=100), file)
    assert found.shape == (64, 96, 3)
    for (row, column), color in {(8, 8): (255, 0, 0), (8, 88): (0, 255, 0), (56, 8): (0, 0, 255)}.items():
        assert np.abs(found[row, column].astype(int) - color).max() < 40


def test_a_damaged_exif_turns_nothing(file: Path) -> None:
    whole = saved(picture("RGB", 64, 64))
    damaged = saved(picture("RGB", 64, 64), exif=b"Exif\0\0no TIFF at all")
    assert np.array_equal(pixels(whole, file), pixels(damaged, file))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_grey_of_16_bits_keeps_its_brightness(file: Path, format: str) -> None:
    grey = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    found = pixels(saved(Image.fromarray(grey), format), file)
    assert np.array_equal(found, np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_colour_of_16_bits_keeps_its_brightness(file: Path) -> None:
    colors = np.linspace(0, 65535, 64 * 64 * 3).astype(">u2").reshape(64, -1)
    data = b"".join(b"\0" + line.tobytes() for line in colors)
    found = pixels(png(64, 64, depth=16, data=data), file)
    assert np.array_equal(found, (colors.astype(np.uint16) >> 8).astype(np.uint8).reshape(64, 64, 3))


def test_an_animation_is_its_first_frame(file: Path) -> None:
    first, second = picture("RGB", 64, 64, 1), picture("RGB", 64, 64, 2)
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        data = saved(first, format, save_all=True, append_images=[second], **options)
        assert np.array_equal(pixels(data, file), np.asarray(first)), format


def test_the_digest_tells_pixels_and_shapes_apart(file: Path) -> None:
    images = [Image.new("RGB", size, color) for size in ((64, 128), (128, 64), (64, 64)) for color in ("red", "blue")]
    found = [taken(saved(image), file) for image in images]
    assert len({one.items[0].digest for one in found if isinstance(one, Decoded)}) == len(images)
    again = taken(saved(images[0], "BMP"), file)
    assert isinstance(again, Decoded)
    assert again == found[0]  # another file of the same pixels


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_cut_at_any_kilobyte_is_refused(file: Path, format: str) -> None:
    options = {"quality": 98} if format in ("JPEG", "WEBP", "AVIF") else {}
    mode = "P" if format == "GIF" else "RGB"
    data = saved(picture(mode, 150, 110), format, **options)
    assert len(data) > 8 << 10
    assert pixels(data, file).size
    for size in range(0, len(data), 1 << 10):
        assert "send" in refused(data[:size], file), size


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_get_an_answer_and_never_an_exception(file: Path, seed: int) -> None:
    corrupt = random.Random(seed)
    format = corrupt.choice(FORMATS)
    data = bytearray(saved(picture("P" if format == "GIF" else "RGB", 90, 70, seed), format))
    for _ in range(25):
        for _ in range(corrupt.choice((1, 1, 3, 30))):
            data[int(len(data) * corrupt.random() ** corrupt.choice((1, 4)))] = corrupt.randrange(256)
        taken(bytes(data), file)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"GIF89a",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'/>",
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"P6 8 8 255 " + bytes(192),
        random.Random(1).randbytes(9999),
    ],
)
def test_what_is_no_image_of_the_formats_is_refused_with_their_names(file: Path, data: bytes) -> None:
    assert "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF; send one of these" in refused(data, file)


def test_a_file_is_what_its_bytes_are(file: Path) -> None:
    """No name of a type is looked at, so none can be wrong."""
    image = picture("RGB", 64, 64)
    assert np.array_equal(pixels(saved(image, "BMP"), file), pixels(saved(image, "PNG"), file))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_more_pixels_than_allowed_are_refused_before_they_are_decoded(file: Path, format: str) -> None:
    data = saved(Image.new("L" if format == "GIF" else "RGB", (300, 200)), format)
    assert refused(data, file, 59_999) == "has 300 x 200 pixels; at most 59999 are allowed; send a smaller image"
    assert isinstance(taken(data, file, 60_000), Decoded)


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_images_without_pixels_are_refused(file: Path, kind: str, width: int, height: int) -> None:
    size = struct.pack("<HH", width, height)
    bitmap = struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)
    data = {
        "PNG": png(width, height),
        "GIF": b"GIF89a" + size + b"\0\0\0,\0\0\0\0" + size + b"\0\2\2\x4c\1\0;",
        "BMP": b"BM" + bitmap,
    }[kind]
    assert "send" in refused(data, file)


def test_bombs_are_refused(file: Path) -> None:
    """Small files of many pixels, and of texts that unpack to megabytes."""
    assert "at most" in refused(png(65535, 65535), file)
    assert "at most" in refused(png(2**31 - 1, 2**31 - 1), file)
    line = b"\0" + bytes(3 * 64)
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2 << 20)))
    assert "does not decode" in refused(png(64, 64, text, data=64 * line), file)
    half = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 20)))
    many = [half] * (1 + MAX_TEXT_BYTES // (1 << 20))
    assert "does not decode" in refused(png(64, 64, *many, data=64 * line), file)
    assert isinstance(taken(png(64, 64, half, data=64 * line), file), Decoded)


def test_sizes_that_the_model_does_not_take_are_refused(file: Path) -> None:
    assert "one side of 401 x 2 pixels is more than 200 times the other" in refused(saved(picture("L", 401, 2)), file)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_values_without_a_known_white_are_refused(file: Path, mode: str) -> None:
    assert "has 32-bit values" in refused(saved(Image.new(mode, (64, 64)), "TIFF"), file)


class Tiles:
    """Two tiles, side by side, of the image as 32 x 64 pixels, and a small one of all of it."""

    resample = Image.Resampling.BICUBIC

    def views(self, height: int, width: int) -> tuple[View, ...]:
        halves = (View((32, 64), (left, 0, left + 32, 32)) for left in (0, 32))
        return (*halves, View.whole(16, 32))

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        return each_alone(self.views(height, width), lambda height, width: (1, height // 16, width // 16))


def test_an_image_may_be_several_items() -> None:
    image = picture("RGB", 200, 100)
    whole = np.asarray(image.resize((64, 32), Image.Resampling.BICUBIC))
    small = np.asarray(image.resize((32, 16), Image.Resampling.BICUBIC))
    wanted = [((1, 2, 2), whole[:, :32]), ((1, 2, 2), whole[:, 32:]), ((1, 1, 2), small)]
    for (grid, pixels), (shape, values) in zip(image_items(image, Tiles()), wanted, strict=True):
        assert grid == shape
        assert pixels == values.tobytes()


def test_pixels_that_cannot_be_written_leave_no_file(tmp_path: Path) -> None:
    (tmp_path / "full.0").symlink_to("/dev/full")
    found = taken(saved(picture("RGB", 64, 64)), tmp_path / "full")
    assert found == NotWritten("No space left on device")
    assert list(tmp_path.iterdir()) == []
    assert isinstance(taken(saved(picture("RGB", 64, 64)), tmp_path / "none" / "file"), NotWritten)
