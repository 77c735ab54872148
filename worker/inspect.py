"""`python -m quire.worker.inspect '{WorkerConfig as JSON}'`: what would run here, and what would be refused and why.

Prints one JSON object `{"sections": {title: {name: value}}, "refusals": [...]}` and reads no more of the
weights than their headers.
"""

import gc
import sys
from pathlib import Path
from typing import Final

import msgspec
import torch

from quire.kernels.catalog import OPERATIONS, implementations
from quire.kernels.chips import has_cuda, proof, unserved
from quire.kernels.cpu.native import instruction_set
from quire.kernels.gpu import prefill_switch
from quire.kernels.gpu.tile_table import TileTableError
from quire.proto.process.flags import in_flags
from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import build_model, describe
from quire.worker.models.stages import match_stages
from quire.worker.quant.read.source import source_of
from quire.worker.quant.select import kept_activations, schemes_of
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.kinds.normalization import read_normalization
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import checkpoint_names, configured_spec
from quire.worker.specs.spec import ModelSpec
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.load import match
from quire.worker.weights.open import open_checkpoint
from quire.worker.weights.parts import ModelError

Section = dict[str, str | int]
OTHERS: Final = (
    "by the modules of transformers with --model-impl auto: decoders and encoders that keep no state and "
    "need no code of their own; name a MODEL, and it is looked at"
)


def inspect(config: WorkerConfig) -> tuple[dict[str, Section], list[str]]:
    """Sections for a person, and the refusals; an empty `config.model` looks at the device alone."""
    try:
        device = Device(config.device, rank=0)
        kernels = _kernel_proof(device) | _kernels(device)
    except (DeviceError, ImportError, TileTableError) as error:
        return {}, [in_flags(str(error), config.flags)]
    sections: dict[str, Section] = {
        "device": {
            "name": device.name,
            "CUDA": torch.version.cuda or unserved() or "not in this build of torch",
            "CUDA devices": torch.cuda.device_count() if has_cuda() else 0,
            "threads": device.set_threads(config.num_threads, rank=0, num_ranks=1),
            "total memory": device.total_memory(),
            "free memory": device.free_memory(),
        },
        "kernels": kernels,
        "architectures": {"supported": ", ".join(ARCHITECTURES), "others": OTHERS},
    }
    if not config.model:
        return sections, []
    try:
        sections["weights (by headers)"] = _weights(config, device)
    except (ModelError, CheckpointError, DeviceError) as error:
        return sections, [in_flags(str(error), config.flags)]
    return sections, []


class FirstRank(SingleGroup):
    """Rank 0 of several, for building its part of a model; it reaches no other."""

    def __init__(self, size: int) -> None:
        self.size = size


def _kernels(device: Device) -> Section:
    """The form that runs each operation here; importing it proves that it can be. Raises `ImportError` if not."""
    for operation in OPERATIONS:
        operation.implementation(device.torch.type)
    instructions = {"instruction set": instruction_set()} if device.capability is None else {}
    return {**instructions, **implementations(device.torch.type)}


def _kernel_proof(device: Device) -> Section:
    """The proof of the kernels on this chip, and which bodies wait for one. Raises `TileTableError`."""
    if device.capability is None:
        return {}
    section: Section = {f"compute capability {device.capability / 10}": proof(device.capability)}
    if device.capability == prefill_switch.CAPABILITY:
        waits = "plain: no run of the specialized one on this chip is on record"
        pages = f"specialized, for pages of {prefill_switch.LEAST_BLOCK_SIZE} tokens and more (block_size); else plain"
        section["prefill body"] = pages if prefill_switch.is_trusted() else waits
    return section


def _weights(config: WorkerConfig, device: Device) -> Section:
    """Build the model without memory and hold the checkpoint's headers against it.

    Raises `ModelError` or `CheckpointError`.
    """
    spec = configured_spec(config, describe)
    plan = read_plan(config, spec)
    dtype = device.dtype(config.dtype, plan.dtype(spec.dtype, device.torch.type))
    schemes, group = schemes_of(plan, device.torch), FirstRank(config.tensor_parallel_size)
    context = BuildContext(group, torch.device("meta"), dtype, schemes)
    model = build_model(spec, context)
    with open_checkpoint(Path(config.model)) as checkpoint:
        match(model, source_of(checkpoint, plan.stored, plan.unread), checkpoint_names(spec))
        names = checkpoint.names()
    if isinstance(spec, ModelSpec) and spec.vision is not None:
        read_normalization(Path(config.model), spec.vision)
    device.kv_dtype(plan.kv_dtype(config.kv_cache_dtype), dtype)
    num_tensors = len(names) + match_stages(Path(config.model), spec.stages, context)
    section: Section = {"tensors": num_tensors, "fit": "every tensor has its place and its shape"}
    if kept := kept_activations(plan, device.capability):
        section["activations"] = kept
    return section


def main(arguments: list[str]) -> int:
    tie_to_parent()
    gc.disable()  # it ends soon, and looking through every tensor's name again and again takes a third of the time
    sections, refusals = inspect(msgspec.json.decode(arguments[1], type=WorkerConfig))
    sys.stdout.buffer.write(msgspec.json.encode({"sections": sections, "refusals": refusals}))
    return 0


if __name__ == "__main__":
    exit_after(lambda: main(sys.argv))
