"""Videos whose frames are tiles of one size, each an item: what the families that cut images into such tiles share."""

from quire.frontend.media.families.videos.counted import CountedVideos


class TileVideos(CountedVideos, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one model, whose tower reads a frame as a tile of an image."""

    side: int
    """Pixels of the side of a square to which frames are resized."""

    @property
    def max_pixels(self) -> int:
        return self.side**2

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """See `CountedVideos`: whatever their own are."""
        return self.side, self.side
