"""Pages of encoder memory: their size by the model, their number by the configuration."""

from quire.worker.config import WorkerConfig
from quire.worker.specs.vision_spec import VisionSpec

PAGE_ROWS = 64
LARGEST_ITEMS = 4
"""Items of the largest size that fit where nothing is configured: of one request, and of those that come meanwhile."""


def page_bytes(vision: VisionSpec, item_bytes: int) -> int:
    """Memory of one page. `item_bytes`: of one number of a row."""
    return PAGE_ROWS * vision.row_size * item_bytes


def num_pages(config: WorkerConfig, vision: VisionSpec, item_bytes: int) -> int:
    """Pages of one rank; 0 where the configured memory holds none."""
    if config.mm_encoder_cache_bytes:
        return config.mm_encoder_cache_bytes // page_bytes(vision, item_bytes)
    largest = config.max_num_encoder_patches // vision.merge_size**2
    return LARGEST_ITEMS * max(1, -(-largest // PAGE_ROWS))


def no_page(config: WorkerConfig, page: int) -> str:
    """The refusal of a memory that holds not one page of so many bytes."""
    return (
        f"mm_encoder_cache_bytes: {config.mm_encoder_cache_bytes} bytes hold not one page of {PAGE_ROWS} rows; "
        f"give at least {page}, or 0 for the default"
    )
