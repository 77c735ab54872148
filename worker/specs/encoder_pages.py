"""Room for items: pages of encoder memory, their size by the model and their number by the configuration, and steps."""

from pathlib import Path

from quire.worker.config import WorkerConfig
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.spec import ModelSpec, Spec
from quire.worker.specs.vision_spec import VisionSpec
from quire.worker.weights.parts import ModelError

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


def small_steps(config: WorkerConfig, spec: Spec) -> ModelError | None:
    """The refusal of steps without room for an item whose tokens see each other; None where there is room.

    It must be there beside a token of every other output; where the tokens of a prompt do, for a prompt and its answer,
    which run again in one step. Raises ModelError for the files of the image processor.
    """
    if not isinstance(spec, ModelSpec) or spec.vision is None or not spec.vision.whole_spans:
        return None
    longest = config.max_model_len or spec.max_model_len
    if spec.two_way_prompts:
        if config.max_num_batched_tokens >= longest:
            return None
        message = f"{config.max_num_batched_tokens} hold no prompt of {longest} tokens with its answer, which run in "
        message += f"one step where they see each other; give at least {longest}, or lower max_model_len"
        return ModelError("max_num_batched_tokens", message)
    num_tokens = largest_image(Path(config.model), spec.vision, longest)
    least = num_tokens + config.max_num_seqs - 1
    if config.max_num_batched_tokens >= least:
        return None
    message = f"{config.max_num_batched_tokens} hold no image of {num_tokens} tokens, which run in one step, beside "
    message += f"{config.max_num_seqs - 1} other outputs; give at least {least}, or lower max_num_seqs"
    return ModelError("max_num_batched_tokens", message)
