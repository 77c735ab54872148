"""Builds the tower of a spec."""

from quire.worker.build_context import BuildContext
from quire.worker.models.vision.gemma4_tower import Gemma4Patches, Gemma4Tower
from quire.worker.models.vision.glm4v_tower import GlmTower
from quire.worker.models.vision.intern_tower import InternTower
from quire.worker.models.vision.onevision_tower import LlavaNextTower, OneVisionTower
from quire.worker.models.vision.pixtral import PixtralTower
from quire.worker.models.vision.qwen2_tower import Qwen2Tower, Qwen25Tower
from quire.worker.models.vision.qwen3_tower import Qwen3Tower
from quire.worker.models.vision.siglip.gemma3 import Gemma3Tower
from quire.worker.models.vision.siglip.idefics3 import IdeficsTower
from quire.worker.models.vision.siglip.paligemma import PaliGemmaTower
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.gemma3 import Gemma3VisionSpec
from quire.worker.specs.sighted.gemma4_images import Gemma4PatchSpec, Gemma4TowerSpec
from quire.worker.specs.sighted.glm4v import GlmVisionSpec
from quire.worker.specs.sighted.idefics3 import IdeficsVisionSpec
from quire.worker.specs.sighted.internvl import InternVisionSpec
from quire.worker.specs.sighted.llava_next import LlavaNextSpec
from quire.worker.specs.sighted.llava_onevision import OneVisionSpec
from quire.worker.specs.sighted.mistral3 import PixtralSpec
from quire.worker.specs.sighted.paligemma import PaliGemmaVisionSpec
from quire.worker.specs.sighted.qwen2_5_vl import Qwen25VisionSpec
from quire.worker.specs.sighted.qwen2_vl import Qwen2VisionSpec
from quire.worker.specs.sighted.qwen3_vl import Qwen3VisionSpec
from quire.worker.specs.vision_spec import VisionSpec


def build_tower(spec: VisionSpec, context: BuildContext) -> Tower:
    """The tower, its parameters still without memory. Raises ModelError for one that the ranks cannot share."""
    for error in spec.indivisible(context.group.size):
        raise error
    context = context if spec.divided else context.alone
    match spec:
        case Qwen2VisionSpec():
            return Qwen2Tower(spec, context)
        case Qwen25VisionSpec():
            return Qwen25Tower(spec, context)
        case Qwen3VisionSpec():
            return Qwen3Tower(spec, context)
        case GlmVisionSpec():
            return GlmTower(spec, context)
        case PixtralSpec():
            return PixtralTower(spec, context)
        case InternVisionSpec():
            return InternTower(spec, context)
        case LlavaNextSpec():
            return LlavaNextTower(spec, context)
        case OneVisionSpec():
            return OneVisionTower(spec, context)
        case IdeficsVisionSpec():
            return IdeficsTower(spec, context)
        case PaliGemmaVisionSpec():
            return PaliGemmaTower(spec, context)
        case Gemma3VisionSpec():
            return Gemma3Tower(spec, context)
        case Gemma4TowerSpec():
            return Gemma4Tower(spec, context)
        case Gemma4PatchSpec():
            return Gemma4Patches(spec, context)
    raise AssertionError(f"no tower has a spec of {type(spec).__name__}")
