"""Builds the runner of one rank: tables, inputs and recorded steps around a model and its cache."""

from pathlib import Path
from typing import cast

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.layers.expert_choice import ExpertChoice
from quire.worker.media.media_encoder import MediaEncoder
from quire.worker.media.media_inputs import MediaInputs
from quire.worker.memory.kv_cache import KVCache
from quire.worker.models.decoder import Decoder
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.sampling.head import Head
from quire.worker.sampling.pooler import Classifying, Pooler, Staged, VectorHead
from quire.worker.sampling.sampler import Sampler
from quire.worker.sampling.token_labels import TokenLabels
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.spec import ModelSpec, Spec
from quire.worker.step.expert_counts import ExpertCounts
from quire.worker.step.graphs import (
    LARGEST_MIXED,
    LARGEST_OF_EXPERTS,
    CapturedSteps,
    Graphs,
    decode_buckets,
    mixed_buckets,
)
from quire.worker.step.inputs import Inputs
from quire.worker.step.runner import Model, Runner
from quire.worker.step.taped_steps import TapedSteps
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import SlotTable
from quire.worker.tables.upload import Upload


def build_runner(
    config: WorkerConfig,
    spec: Spec,
    model: Model,
    cache: KVCache,
    max_model_len: int,
    device: Device,
    reports: bool,
    encoder: MediaEncoder | None = None,
) -> Runner:
    """Tables and runner around a model and its cache. `encoder`: None for a model that reads text alone."""
    sampling = SamplingTable(config.max_num_seqs, spec.vocab_size, spec.eos_token_ids, device)
    slots = SlotTable(
        config.max_num_seqs,
        max_model_len,
        cache.num_blocks,
        cache.layout.block_sizes,
        sampling,
        device.torch,
        spec.vocab_size,
    )
    upload = Upload(device, config.max_num_seqs)
    tokens = config.max_num_batched_tokens
    inputs = Inputs(slots, upload.rows, tokens, cache.layout.groups, spec.num_position_axes)
    # an encoder's attention reads the host's lengths, which a graph could not, and a library's modules what they like
    is_eager = spec.whole_prompts or isinstance(spec, LibrarySpec)
    routed = isinstance(spec, ModelSpec) and bool(spec.experts)
    graphs = Graphs(device) if is_eager else captured_steps(config, device, routed)
    output: Pooler | Sampler | TokenLabels
    head = None if spec.pooling is None else head_of(spec, model)
    if head is not None and spec.head is not None and spec.head.by_token:
        output = TokenLabels(head)
    elif spec.pooling is not None:
        output = Pooler(spec.pooling, config.max_num_seqs, spec.hidden_size, device.torch, head)
    else:
        matchers = GrammarMatchers(
            Path(config.tokenizer or config.model), spec.vocab_size, spec.eos_token_ids, config.max_num_seqs, device
        )
        output = Sampler(slots, cast(Head, model), device, reports=reports, matchers=matchers)
    media = None
    if encoder is not None:
        media = MediaInputs(encoder, inputs.shifts, isinstance(spec, ModelSpec) and spec.two_way_prompts)
    counts = None
    if reports and (choices := expert_choices(model)):
        counts = ExpertCounts(choices, tokens, config.tensor_parallel_size, device)
    return Runner(
        model, cache, slots, inputs, upload, graphs, device, tokens, output, media=media, expert_counts=counts
    )


def head_of(spec: Spec, model: Model) -> VectorHead | None:
    """The function of pooled states that makes the answer of them; None: they are the answer."""
    if spec.stages:
        return cast(Staged, model).stages
    return cast(Classifying, model).classifier


def expert_choices(model: Model) -> dict[int, ExpertChoice]:
    """The choices of experts, by the numbers of their layers. A model of the library's chooses by itself."""
    blocks = model.blocks if isinstance(model, Decoder) else ()
    parts = ((number, part) for number, block in enumerate(blocks) for part in block.modules())
    return {number: part for number, part in parts if isinstance(part, ExpertChoice)}


def captured_steps(config: WorkerConfig, device: Device, routed: bool) -> CapturedSteps:
    """The steps that will be captured: none with `enforce_eager`. `routed`: of a model of experts."""
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if config.enforce_eager:
        return Graphs(device)
    if device.records_graphs:
        largest = LARGEST_OF_EXPERTS if routed else LARGEST_MIXED
        mixed = mixed_buckets(config.max_num_batched_tokens, config.max_num_seqs, largest)
        return Graphs(device, decode_buckets(rows), mixed)
    if device.records_tapes:
        return TapedSteps(device, config.max_num_batched_tokens, rows)
    return Graphs(device)
