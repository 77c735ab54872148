"""Towers of which two ranks have a share each: the rows of the whole tower, and what cannot be shared."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import tiny_gemma4
import tiny_idefics3
import tiny_internvl
import tiny_llava_next
import tiny_mistral3
import tiny_onevision
import torch
from parts.clock import GUARD
from seen_images import picture, pixels_of

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import read_spec

CPU = torch.device("cpu")
FAMILIES = (
    *("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "InternVL", "LlavaOnevision", "LlavaNext", "Mistral3", "Gemma4"),
    *("Idefics3", "Glm4v"),
)


class Meeting:
    """The sums of two ranks that are threads."""

    def __init__(self):
        self.barrier, self.given = threading.Barrier(2, timeout=GUARD), [None, None]


class Member:
    """One of its ranks."""

    size = 2

    def __init__(self, rank, meeting):
        self.rank, self._meeting = rank, meeting

    def all_reduce(self, tensor):
        self._meeting.given[self.rank] = tensor
        self._meeting.barrier.wait()
        total = self._meeting.given[0] + self._meeting.given[1]
        self._meeting.barrier.wait()
        return tensor.copy_(total)


@pytest.fixture(scope="module")
def folder_of(seeing_checkpoint, tmp_path_factory):
    def make(family):
        others = {"InternVL": tiny_internvl, "LlavaOnevision": tiny_onevision, "Mistral3": tiny_mistral3}
        others["Idefics3"] = tiny_idefics3
        others["LlavaNext"] = tiny_llava_next
        if family == "Gemma4":
            return tiny_gemma4.write_checkpoint(tmp_path_factory.mktemp(family), "small")
        if family in others:
            return others[family].write_checkpoint(tmp_path_factory.mktemp(family))
        return seeing_checkpoint(family)

    return make


def items_of(vision):
    """Pictures of shapes that the tower takes."""
    side = vision.tile_side
    merge = vision.merge_size
    grids = [(side, side)] * 2 if side else [(2 * merge, 3 * merge), (merge, merge), (5 * merge, 4 * merge)]
    patch = vision.patch_size
    return pixels_of([picture(*grid, seed=number, patch=patch) for number, grid in enumerate(grids)], patch)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_make_the_rows_of_one(family, folder_of, load):
    folder = folder_of(family)
    spec, meeting = read_spec(folder, tower_mode="weights"), Meeting()

    @torch.inference_mode()
    def rows(rank):
        context = BuildContext(Member(rank, meeting), CPU, torch.float32, everywhere(DenseScheme()))
        tower = load_model(folder, spec, context).model.vision
        elements = sum(one.numel() for one in tower.parameters())
        assert elements == spec.vision.rank_elements(2) < spec.vision.num_elements
        return tower(*items_of(spec.vision))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rows, range(2))
    assert torch.equal(first, second)
    with torch.inference_mode():
        whole = load(folder).vision(*items_of(spec.vision))
    torch.testing.assert_close(first, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_a_divided_tower_counts_with_its_share(size, folder_of):
    whole, divided = (read_spec(folder_of("Qwen2_5_VL"), tower_mode=mode) for mode in ("data", "weights"))
    saved = whole.vision.shared_elements * (size - 1) // size
    assert sizes.count(whole, size).others - sizes.count(divided, size).others == saved


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"num_heads": 1}, "the tower's 1 heads cannot be divided among 2 ranks"),
        ({"intermediate_size": 45}, "the tower's 45 elements of a feed-forward cannot be divided among 2 ranks"),
    ],
)
def test_a_tower_that_the_ranks_cannot_share_is_refused_with_both_numbers(vision, message, seeing_checkpoint):
    folder = seeing_checkpoint("Qwen2_5_VL", vision=vision)
    asked = {"model": str(folder), "tensor_parallel_size": 2}
    _, refusals = fit(WorkerConfig(**asked, mm_encoder_tp_mode="weights"), Place(False, 1 << 30))
    assert refusals == [f"mm_encoder_tp_mode: weights: {message}; choose data"]
    assert fit(WorkerConfig(**asked), Place(False, 1 << 30))[1] == []


def test_norms_over_all_heads_are_refused_where_ranks_share_them(folder_of):
    spec = read_spec(folder_of("InternVL"), tower_mode="weights").vision
    assert replace(spec, qk_norm=False).indivisible(2) == []
    (refusal,) = replace(spec, qk_norm=True).indivisible(2)
    assert str(refusal) == (
        "mm_encoder_tp_mode: weights: the tower normalises the queries and keys of all heads together; choose data"
    )
