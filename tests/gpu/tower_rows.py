"""The tower's rows: what a step's images take, beside the operations that their shapes ask for."""

from collections.abc import Callable, Iterator
from functools import partial

import chip
import models
import torch
import towers
from report import Case, Given, Report
from shared import Shared
from workloads import Images

from quire.kernels.bench.stopwatch import milliseconds
from quire.worker.build_context import BuildContext
from quire.worker.build_media import build_media
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import ALONE
from quire.worker.models.build import load_model
from quire.worker.quant.plan import NO_PLAN
from quire.worker.quant.select import schemes_of
from quire.worker.specs.registry import configured_spec
from quire.worker.specs.sighted.qwen3_vl import Qwen3VisionSpec

SECONDS = 1.0
"""Of each measurement."""
MOST_KERNELS = 16
"""The costliest are told."""


def tower(report: Report, given: Given, images: Images) -> Iterator[Case]:
    encoding = Shared(partial(Encoding, given, images))
    yield Case("start", encoding)
    for count in (images.count, 1):
        name = f"tower_{count}"
        yield Case(name, lambda name=name, count=count: report.figure(name, encoding().of_pixels(count)))
    yield Case("files", lambda: report.figure(f"files_{images.count}", encoding().of_files()))
    if not given.stands_in:
        yield Case("where the time goes", lambda: report.figure("tower_kernels", encoding().kernels()))


class Encoding:
    """A tower on random weights, the encoder around it, and images in files."""

    def __init__(self, given: Given, images: Images) -> None:
        small = given.device == "cpu"
        self._device, self._images = chip.ask(given.device), images
        folder = models.write_seeing(given.folder / "model", small, num_hidden_layers=3)
        config = WorkerConfig(
            model=str(folder), run_dir=str(given.folder), device=given.device, max_model_len=8192,
            max_num_encoder_patches=images.count * images.num_patches,
        )  # fmt: skip
        spec, dtype = configured_spec(config), torch.float32 if small else torch.bfloat16
        context = BuildContext(ALONE, self._device.torch, dtype, schemes_of(NO_PLAN, self._device.torch))
        model = load_model(folder, spec, context, "dummy", given.seed).model
        encoder = build_media(config, spec, model, ALONE, dtype, self._device)
        assert encoder is not None
        self._tower, self._encoder = model.vision, encoder
        grids = (images.grid,) * images.count
        self._seen = towers.items(given.folder, self._tower.spec.patch_size, grids, given.seed)
        self._pixels = [self._device.upload(one) for one in self._seen.pixels]

    def of_pixels(self, count: int) -> dict[str, float]:
        """Of images whose pixels lie on the device."""
        return self._figures(count, self._forward(count))

    def of_files(self) -> dict[str, float]:
        """Of all images as a step has them: read, uploaded, encoded, their rows put into encoder memory."""
        return self._figures(self._images.count, lambda: self._encoder.encode(self._seen.encodes))

    def kernels(self) -> dict[str, float]:
        """Milliseconds of all launches of a kernel, the costliest first."""
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CUDA if self._device.is_cuda else kinds.CPU]
        run = self._forward(self._images.count)
        with torch.inference_mode(), torch.profiler.profile(activities=activities) as profile:
            run()
            self._device.synchronize()
        rows = profile.key_averages()
        spent = {row.key[:90]: getattr(row, "self_device_time_total", 0) or row.self_cpu_time_total for row in rows}
        costliest = sorted(spent, key=lambda name: -spent[name])[:MOST_KERNELS]
        return {name: spent[name] / 1e3 for name in costliest}

    def _forward(self, count: int) -> Callable[[], torch.Tensor]:
        return lambda: self._tower.forward(self._pixels[:count], self._seen.grids[:count])

    def _figures(self, count: int, run: Callable[[], object]) -> dict[str, float]:
        with torch.inference_mode():
            ms = milliseconds([run], self._device.torch, SECONDS, waits=True)
        work = flops(self._tower.spec, count, self._images.num_patches)
        return {"ms": ms, "images_per_s": 1e3 * count / ms, "flops": work, "flops_per_s": 1e3 * work / ms}


def flops(spec: Qwen3VisionSpec, count: int, num_patches: int) -> float:
    """Of the products and of attention, for so many images of so many patches each."""
    hidden, merged = spec.hidden_size, spec.merged_size
    block = 4 * hidden**2 + 2 * hidden * spec.intermediate_size
    mergers = (1 + spec.num_deepened) * (merged**2 + merged * spec.output_size) / spec.merge_size**2
    products = 2 * (spec.patch_numbers * hidden + spec.num_blocks * block + mergers)
    return count * num_patches * (products + 4 * spec.num_blocks * hidden * num_patches)
