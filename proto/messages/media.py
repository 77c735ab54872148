"""Messages about media: what stands in a prompt for an image, from the frontend that decoded it to the workers that
encode it. Pixels lie in a file of the run directory and travel in no message.
"""

import msgspec

DIGEST_BYTES = 32
NO_VIDEO = -1
"""`MediaSpan.elapsed` of an item that goes on with no video."""
MAX_ITEMS = 2048
"""Items of one prompt."""
MEDIA_FOLDER = "media"
"""Folder of the run directory; each frontend has one of its own in it, which begins with its index and a hyphen."""

Grid = tuple[int, ...]
"""Frames in an item's file, and rows and columns of its patches; a row of the item stands for each square of them, row
after row. Where that is not so, numbers follow, none negative, by which the model's tower lays out its rows."""
PLAIN = 3
"""Length of a grid behind which no such numbers stand."""


class MediaSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The tokens `start` .. `start + num_tokens - 1` of a prompt, which hold the places of one item's rows.

    An image is one item or, where its model cuts it into tiles, several; a video is an item for each run of frames that
    its model reads as one patch in time.
    """

    start: int
    num_tokens: int
    grid: Grid
    num_breaks: int = 0
    """Tokens that have no row of the item: none, or one behind each row of its tokens."""
    elapsed: int = NO_VIDEO
    """Positions in time since the video began with which this item goes on: its rows and columns are counted from the
    video's first item, which `NO_VIDEO` says it is, or none's."""

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_encoded(self) -> int:
        """Tokens that stand for a row of the item."""
        return self.num_tokens - self.num_breaks

    @property
    def num_patches(self) -> int:
        return num_patches(self.grid)


class Media(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One item of a prompt: where it stands, and what stands there."""

    span: MediaSpan
    digest: bytes
    """SHA-256, 32 bytes, over all that the rows depend on: kind, grid and pixels. Equal digests have equal rows."""
    folder: str
    """Folder of the media folder where its pixels lie; see `media_file`."""
    num_bytes: int
    """Size of the file."""


class MediaFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Facts of the encoder that the workers have, and of the memory that keeps its rows."""

    kinds: tuple[str, ...]
    """Kinds of items, `image` or `video`."""
    tokens_by: int
    """Patches that one token stands for: those of a square of the grid."""
    page_rows: int
    """Rows, one for each token, in a page of encoder memory."""
    num_pages: int
    """Pages of encoder memory. An item takes whole ones."""
    whole_spans: bool = False
    """The tokens of a span see each other: none runs before a step that runs all of those behind it in the span."""

    def pages_for(self, num_rows: int) -> int:
        return -(-num_rows // self.page_rows)


class Encode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Make the rows of one item and write them to these pages, between the rows of the plan before and of this one."""

    digest: bytes
    grid: Grid
    folder: str
    pages: bytes
    """int32 [runs, 2]: runs of adjacent pages, the first and how many, in the order of the item's rows."""


class Bind(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """From this plan on, a slot finds the rows of its span number `index` in these pages, until a later bind.

    Nobody unbinds: the pages may get another item once no row reads the span any more, or none before its next bind.
    Slots, and spans of one slot, may share pages.
    """

    slot: int
    index: int
    pages: bytes
    """See `Encode`."""


def num_patches(grid: Grid) -> int:
    """Patches of an item: its frames are one in time."""
    return grid[1] * grid[2]


def media_file(folder: str, digest: bytes) -> str:
    """Path of an item's pixels within the media folder: uint8 [frames, rows * patch, columns * patch, 3]."""
    return f"{folder}/{digest.hex()}"
