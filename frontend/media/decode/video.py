"""A video as its model reads it: some of its frames, resized, a few of them an item."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from PIL import Image, UnidentifiedImageError

from quire.frontend.media.decode.container import check_container
from quire.frontend.media.decode.frames import ANIMATIONS, AnimatedFrames, Frames, ListedFrames
from quire.frontend.media.decode.image import FORMATS
from quire.frontend.media.decode.video_file import FileFrames
from quire.frontend.media.families.table import VideoRules
from quire.frontend.media.families.videos.qwen import UNKNOWN_FPS
from quire.frontend.media.refused import MediaRefused
from quire.proto.messages.media import MAX_ITEMS, Grid

CHANNELS = 3


class VideoItems:
    """The items of one video, made one after the other."""

    def __init__(self, frames: Frames, rules: VideoRules, max_bytes: int) -> None:
        """`max_bytes`: of the pixels of all items. Raises `MediaRefused`."""
        self._frames = frames
        self._rules = rules
        is_list = isinstance(frames, ListedFrames)
        fps = (rules.fps if is_list else frames.fps) or UNKNOWN_FPS
        if is_list and rules.num_frames is None:
            self.indices = list(range(frames.num_frames))
        else:
            self.indices = rules.sample(frames.num_frames, fps)
        if len(self.indices) > rules.max_frames:
            raise MediaRefused(f"has {len(self.indices)} frames; at most {rules.max_frames} are read; send fewer")
        num_items = -(-len(self.indices) // rules.frames_per_item)
        if num_items > MAX_ITEMS:
            remedy = "ask for fewer frames (fps, num_frames)"
            raise MediaRefused(f"has {num_items} items; a prompt may have {MAX_ITEMS}; {remedy}")
        self._size = height, width = rules.size(len(self.indices), frames.height, frames.width)
        num_bytes = len(self.indices) * height * width * CHANNELS
        if num_bytes > max_bytes:
            message = f"{len(self.indices)} frames of it take {num_bytes} bytes; at most {max_bytes} are kept"
            raise MediaRefused(f"{message} (media_store_bytes); ask for fewer (fps, num_frames) or smaller ones")
        self.seconds = rules.seconds(self.indices, frames.num_frames, fps)
        """The time of each item."""

    def __iter__(self) -> Iterator[tuple[Grid, bytes]]:
        """Grid and pixels of each item, uint8 [frames, rows * patch, columns * patch, 3]. Raises `MediaRefused`."""
        height, width = self._size
        step = self._rules.frames_per_item
        for start in range(0, len(self.indices), step):
            group = self.indices[start : start + step]
            if len(group) > 1:  # one alone is repeated by the tower
                group += group[-1:] * (step - len(group))
            pixels = b"".join(self._resized(index) for index in group)
            is_last = start + step >= len(self.indices)
            yield self._rules.grid(len(group), height, width, is_last=is_last), pixels

    def _resized(self, index: int) -> bytes:
        height, width = self._size
        frame, patch = self._frames.frame(index).resize((width, height), Image.Resampling.BICUBIC), self._rules.patch
        return frame.crop((0, 0, width // patch * patch, height // patch * patch)).tobytes()


def open_video(data: bytes, frame_sizes: Sequence[int], max_pixels: int) -> Frames:
    """The frames of a file, or of pictures of `frame_sizes` bytes that stand in `data` one behind the other.

    Raises `MediaRefused`, and of a damaged file whatever Pillow or OpenCV raise.
    """
    if frame_sizes:
        ends = accumulate(frame_sizes, initial=0)
        return ListedFrames([data[begin:end] for begin, end in pairwise(ends)], max_pixels)
    demuxer = check_container(data)
    if demuxer:
        return FileFrames(data, demuxer, max_pixels)
    try:
        return AnimatedFrames(data, max_pixels)
    except UnidentifiedImageError as error:
        kinds = f"MP4, MOV, WebM, Matroska, AVI, MPEG-TS, {', '.join(ANIMATIONS)}"
        remedy = f"send one of these, or its frames as a list of {', '.join(FORMATS)}"
        raise MediaRefused(f"is no video that is read here: {kinds}; {remedy}") from error
