"""Pages of encoder memory: their size by the model, their number by the configuration."""

from quire.worker.config import WorkerConfig
from quire.worker.specs.vision_spec import VisionSpec

PAGE_ROWS = 64
STEPS = 4
"""Steps whose items fit where nothing is configured: those of one request, and of those that come meanwhile."""


def page_bytes(vision: VisionSpec, item_bytes: int) -> int:
    """Memory of one page. `item_bytes`: of one number of a row."""
    return PAGE_ROWS * vision.row_size * item_bytes


def num_pages(config: WorkerConfig, vision: VisionSpec, largest: int, item_bytes: int) -> int:
    """Pages of one rank; 0 where the configured memory holds none. `largest`: tokens of the model's largest image."""
    if config.mm_encoder_cache_bytes:
        return config.mm_encoder_cache_bytes // page_bytes(vision, item_bytes)
    of_step = config.max_num_encoder_patches // vision.merge_size**2
    return max(STEPS * -(-of_step // PAGE_ROWS), -(-largest // PAGE_ROWS), 1)


def no_page(config: WorkerConfig, page: int) -> str:
    """The refusal of a memory that holds not one page of so many bytes."""
    return (
        f"mm_encoder_cache_bytes: {config.mm_encoder_cache_bytes} bytes hold not one page of {PAGE_ROWS} rows; "
        f"give at least {page}, or 0 for the default"
    )
