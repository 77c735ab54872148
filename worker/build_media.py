"""Builds what one rank encodes items with: the model's tower, and memory for its rows."""

from pathlib import Path

import torch

from quire.proto.messages.media import MEDIA_FOLDER, MediaFacts
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Group
from quire.worker.media.encoder_memory import EncoderMemory
from quire.worker.media.media_encoder import MediaEncoder
from quire.worker.memory.shortage import MemoryShortage, refusing
from quire.worker.models.build import AnyModel
from quire.worker.models.decoder import Decoder
from quire.worker.specs.encoder_pages import no_page, num_pages, page_bytes
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.registry import AnySpec
from quire.worker.specs.spec import ModelSpec


def build_media(
    config: WorkerConfig, spec: AnySpec, model: AnyModel, group: Group, dtype: torch.dtype, device: Device
) -> MediaEncoder | None:
    """None for a model without a tower. Raises `MemoryShortage`."""
    if not isinstance(spec, ModelSpec) or spec.vision is None:
        return None
    assert isinstance(model, Decoder)
    assert model.vision is not None
    vision = spec.vision
    largest = largest_image(Path(config.model), vision, config.max_model_len or spec.max_model_len)
    pages = num_pages(config, vision, largest, dtype.itemsize)
    if not pages:
        raise MemoryShortage(no_page(config, page_bytes(vision, dtype.itemsize)))
    with refusing(device, "encoder memory", "encoder"):
        memory = EncoderMemory(pages, vision.row_size, dtype, device.torch)
    folder = Path(config.run_dir) / MEDIA_FOLDER
    most_patches = max(config.max_num_encoder_patches, vision.patches_of(largest))
    return MediaEncoder(model.vision, memory, group, device, folder, vision, most_patches)


def media_facts(encoder: MediaEncoder | None) -> MediaFacts | None:
    """The facts by which the scheduler gives out memory, and frontends know what they may send."""
    if encoder is None:
        return None
    return encoder.memory.facts(encoder.kinds, encoder.merge**2, whole_spans=encoder.vision.whole_spans)


def encoder_bytes(encoder: MediaEncoder | None) -> int:
    """Encoder memory of this rank."""
    return 0 if encoder is None else encoder.memory.num_bytes


def encode_first(encoder: MediaEncoder | None, device: Device) -> None:
    """Encode a small item to find faults early, and where kernels are compiled the largest."""
    if encoder is not None:
        with torch.inference_mode():
            encoder.encode_blank(encoder.most_patches if device.compiles else encoder.merge**2)
