"""Builds a model from its folder, with its weights in place."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

from quire.worker.build_context import BuildContext
from quire.worker.device.host_memory import release_freed
from quire.worker.models.decoder import Decoder
from quire.worker.models.encoder import Encoder
from quire.worker.models.stages import load_stages
from quire.worker.quant.plan import NO_PLAN, Plan
from quire.worker.quant.read.source import source_of
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.kinds.normalization import read_normalization
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.registry import AnySpec, checkpoint_names
from quire.worker.weights.dummy import fill_dummy
from quire.worker.weights.load import fill
from quire.worker.weights.open import open_checkpoint
from quire.worker.weights.tied_head import check_tied_head

if TYPE_CHECKING:
    from quire.worker.models.library.model import LibraryModel

AnyModel = Union[Decoder, Encoder, "LibraryModel"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: AnyModel
    weight_bytes: int
    """Memory of this rank's weights."""
    bytes_read: int
    """Bytes this rank read from the checkpoint: its share only."""


def load_model(
    model_dir: Path,
    spec: AnySpec,
    context: BuildContext,
    load_format: Literal["auto", "safetensors", "dummy"] = "auto",
    seed: int = 0,
    plan: Plan = NO_PLAN,
) -> LoadedModel:
    """Build the model for this rank and fill it from `model_dir`, or from `seed` alone with load_format "dummy".

    `plan`: by which the schemes of `context` were chosen, and the checkpoint is read.
    ModelError if it cannot be divided among the ranks, or nothing says how its tower reads pixels; CheckpointError if
    the files do not fit the model.
    """
    model = build_model(spec, context)
    if isinstance(model, Decoder) and model.vision is not None:
        model.vision.normalize(read_normalization(model_dir, model.vision.spec))
    if load_format == "dummy":
        fill_dummy(model, seed, context.device)
        bytes_read = 0
    else:
        names = checkpoint_names(spec)
        with open_checkpoint(model_dir) as checkpoint:
            check_tied_head(checkpoint, names, context.group.rank, context.group.size)
            bytes_read = fill(model, source_of(checkpoint, plan.stored, plan.unread), names, context.device)
    if spec.stages:
        model.stages = load_stages(model_dir, spec.stages, context, load_format, seed)
    release_freed()  # weights as they were stored lay between those that stay
    return LoadedModel(model, model.weight_bytes, bytes_read)


def describe(folder: Path) -> LibrarySpec:
    """The spec of a model by the library's modules, of which this process then runs some. Raises ModelError."""
    from quire.worker.models.library.describe import describe

    return describe(folder)


def build_model(spec: AnySpec, context: BuildContext) -> AnyModel:
    """The model's modules, parameters still on the meta device: nothing is allocated, yet all shapes are checked."""
    if isinstance(spec, LibrarySpec):
        from quire.worker.models.library.model import LibraryModel

        return LibraryModel(spec, context).eval()
    model = Encoder(spec, context) if isinstance(spec, EncoderSpec) else Decoder(spec, context)
    return model.eval()
