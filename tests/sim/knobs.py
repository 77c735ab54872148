"""The settings of one seed's run. Every seed draws its own subset of features and faults (swarm testing)."""

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from hashlib import blake2b

from images import Images, draw_images
from msgspec import structs

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GroupFacts
from quire.proto.messages.requests import ModelFacts, Submit
from quire.proto.transport.wire import ints
from quire.scheduler.config import SchedulerConfig

WEIGHTS = {
    "submit": 10.0,
    "burst": 1.0,
    "deliver": 60.0,
    "abort": 1.5,
    "abort_unknown": 0.5,
    "abort_labels": 0.3,
    "ask_load": 0.7,
    "repeat": 0.7,
    "ghost": 1.0,
    "old_news": 0.3,
    "tick": 6.0,
    "jump": 0.15,
    "frontend_lost": 0.2,
    "group_gone": 0.25,
    "nonsense": 0.1,
    "scheduler_dies": 0.08,
    "drain": 0.08,
    "give_up": 0.04,
}


@dataclass(slots=True)
class Knobs:
    """The settings of one run, drawn once."""

    config: SchedulerConfig
    group: GroupFacts
    block_sizes: tuple[int, ...]
    num_blocks: int
    max_model_len: int
    vocab: int
    eos: tuple[int, ...]
    num_frontends: int
    weights: dict[str, float]
    max_live: int
    bad_rate: float
    """Share of sampling rows whose logits are not finite."""
    plan_rate: float
    """Chance that the core may plan after an event."""
    long_prompts: bool
    weak_hash: bool
    """Prefix keys have six bits: collisions are common, and must be harmless."""
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    salts: tuple[str, ...] = ("",)
    adapters: tuple[str, ...] = ()
    images: Images | None = None
    """None: the model reads text alone."""
    windows: tuple[int, ...] = ()
    """Of each KV group, 0 without one; empty: no group has one."""

    def facts(self, num_blocks: int) -> ModelFacts:
        return ModelFacts(
            max_model_len=self.max_model_len,
            vocab_size=self.vocab,
            eos_token_ids=self.eos,
            num_blocks=num_blocks,
            block_sizes=self.block_sizes,
            kv_bytes=0,
            weight_bytes=0,
            device="fake",
            dtype="none",
            architecture="oracle",
            revision="r1",
            adapters=self.adapters,
            media=None if self.images is None else self.images.facts,
            windows=self.windows,
            most_blocks=self._most_blocks() if self.windows else (),
        )

    def _most_blocks(self) -> tuple[int, ...]:
        """Blocks that the window, one token more and the largest step touch, wherever they begin."""
        pairs = zip(self.windows, self.block_sizes, strict=True)
        step = self.config.max_num_batched_tokens
        return tuple((window + step + size - 2) // size + 1 if window else 0 for window, size in pairs)

    def is_bad(self, seed: int, index: int, position: int) -> bool:
        """True when a row of this output that ends at this position computes values that are not finite."""
        if not self.bad_rate:
            return False
        key = blake2b(b"%d %d %d" % (seed, index, position), digest_size=4).digest()
        return int.from_bytes(key, "little") < self.bad_rate * 2**32


def draw_knobs(
    rng: random.Random,
    num_groups: int = 1,
    of_images: random.Random | None = None,
    of_windows: random.Random | None = None,
    *,
    whole: bool = False,
) -> Knobs:
    """`num_groups`: KV groups of the model; what more than one draw leaves the runs of one as they are. `of_images`
    draws what has to do with images, `of_windows` a layout of groups with windows; None: there are none. `whole`: the
    tokens of an image see each other, and most steps have room for the largest.
    """
    block_size = rng.choice((1, 1, 2, 3, 4, 4, 8, 16))
    num_blocks = rng.choice((3, 5, 8, 12, 16, 24, 40, 64))
    max_num_seqs = rng.choice((1, 2, 3, 4, 6, 8))
    budget = max_num_seqs + rng.choice((0, 1, 2, 5, 16, 64))
    vocab = rng.choice((24, 48, 400))
    max_model_len = max(4, min(rng.choice((24, 48, 80)), num_blocks * block_size + rng.choice((0, 7))))
    chunked = rng.random() < 0.75
    config = SchedulerConfig(
        world_size=rng.choice((1, 1, 2, 3)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len),
        enable_prefix_caching=rng.random() < 0.8,
        enable_chunked_prefill=chunked,
        max_num_partial_prefills=rng.choice((1, 2, 4)),
        scheduling_policy=rng.choice(("fcfs", "priority")),
        max_num_queued_reqs=rng.choice((3, 1000, 1000)),
        max_num_queued_tokens=rng.choice((60, 100_000, 100_000)),
        max_timeout_seconds=1000.0,
        max_restarts_per_request=rng.choice((0, 1, 2)),
        audit_interval_steps=0,
    )
    weights = {name: weight * rng.choice((0, 1, 1, 3)) for name, weight in WEIGHTS.items()}
    weights["submit"] = WEIGHTS["submit"] * rng.choice((0.5, 1, 2))
    weights["burst"] = WEIGHTS["burst"] * rng.choice((0, 0, 1, 4))
    weights["deliver"] = WEIGHTS["deliver"]
    knobs = Knobs(
        config=config,
        group=_draw_group(copy(rng), config.world_size),  # apart: what a seed is known to find, it finds
        block_sizes=(block_size, *(block_size * rng.choice((1, 2)) for _ in range(num_groups - 1))),
        num_blocks=num_blocks * num_groups,
        max_model_len=max_model_len,
        vocab=vocab,
        eos=(2,) if rng.random() < 0.7 else (2, 5),
        num_frontends=rng.choice((1, 2, 3)),
        weights=weights,
        max_live=rng.choice((2, 6, 16, 30)),
        bad_rate=rng.choice((0, 0, 0.002, 0.02, 0.1)),
        plan_rate=rng.choice((0.4, 0.8, 1.0)),
        long_prompts=rng.random() < 0.5,
        weak_hash=rng.random() < 0.2,
        salts=("",) if rng.random() < 0.5 else ("", "a", "b"),
        adapters=("lion",) if rng.random() < 0.2 else (),
    )
    longest = max(1, knobs.max_model_len * 2 // 3)
    knobs.prefixes = [_tokens(rng, vocab, rng.randint(1, longest)) for _ in range(rng.choice((1, 2, 4)))]
    if of_windows is not None:
        _draw_layout(of_windows, knobs)
    if of_images is not None:
        knobs.images = draw_images(of_images, whole=whole)
        knobs.config = config = structs.replace(config, max_num_encoder_patches=knobs.images.max_patches)
        if whole and of_images.random() < 0.9:
            least = max(knobs.images.sizes) + config.max_num_seqs - 1
            budget = max(config.max_num_batched_tokens, least)
            knobs.config = structs.replace(config, max_num_batched_tokens=budget)
    return knobs


def _draw_layout(rng: random.Random, knobs: Knobs) -> None:
    """One to four groups, with at least one window among them, of blocks of one size or of several."""
    base, windows = knobs.block_sizes[0], (1, 2, 3, 4, 5, 8, 13, 24)
    others = (rng.choice((0, rng.choice(windows))) for _ in range(rng.randint(0, 3)))
    knobs.windows = (*others, rng.choice(windows))
    knobs.block_sizes = tuple(base * rng.choice((1, 1, 2, 4)) for _ in knobs.windows)
    knobs.num_blocks *= len(knobs.windows)


def _draw_group(rng: random.Random, world_size: int) -> GroupFacts:
    """One stage of all ranks, or a stage of each.

    Stages stand in for pipeline parallelism: the feature brings them, their plans and their reporter exist already.
    """
    num_stages = rng.choice((1, 1, world_size))
    return GroupFacts(world_size, num_stages, world_size - world_size // num_stages, num_stages + 1)


def _tokens(rng: random.Random, vocab: int, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab) for _ in range(count))


def draw_submit(
    rng: random.Random,
    knobs: Knobs,
    number: int,
    seed: int,
    conversations: Sequence[list[int]],
    prefix: list[int] | None = None,
) -> tuple[Submit, list[int]]:
    """A request that is mostly valid; its parameter seed is its unique name.

    `conversations`: earlier prompts with their answers. `prefix`: what its prompt begins with, all of it mostly.
    """
    room = min(knobs.max_model_len, knobs.facts(knobs.num_blocks).num_kv_tokens + 1)
    start = prefix or list(rng.choice(conversations if conversations and rng.random() < 0.4 else knobs.prefixes))
    prompt = start[: rng.randint(0, len(start))] if rng.random() < (0.1 if prefix else 0.3) else start
    prompt = prompt + list(_tokens(rng, knobs.vocab, rng.choice((0, 1, 2, 5, 9) if knobs.long_prompts else (0, 1))))
    if rng.random() < 0.1:
        prompt += [0]
    if rng.random() < 0.1:
        prompt = list(_tokens(rng, knobs.vocab, rng.randint(1, room)))
    if prompt and rng.random() < 0.97:
        prompt = prompt[: room - 1]
    if rng.random() < 0.01:
        prompt[len(prompt) // 2 :] = [rng.choice((-1, knobs.vocab))]
    most = max(1, room - len(prompt)) if rng.random() < 0.97 else knobs.max_model_len
    max_tokens = rng.choice((1, 2, most)) if rng.random() < 0.3 else rng.randint(1, most)
    n = rng.choice((1, 1, 1, 2, 3, 5)) if rng.random() < 0.5 else 1
    params = SamplingParams(
        temperature=1.0 if n > 1 and rng.random() < 0.98 else rng.choice((0.0, 1.0)),
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.2 else 0,
        stop_token_ids=_tokens(rng, knobs.vocab, rng.randint(1, 3)) if rng.random() < 0.2 else (),
        ignore_eos=rng.random() < 0.3,
        logprobs=0 if rng.random() < 0.15 else -1,
        prompt_logprobs=0 if rng.random() < 0.08 else -1,
    )
    submit = Submit(
        number,
        f"label-{rng.randrange(8)}",
        ints(prompt),
        params,
        n=n,
        priority=rng.randint(-2, 2) if knobs.config.scheduling_policy == "priority" or rng.random() < 0.01 else 0,
        timeout_seconds=rng.uniform(0.001, 0.5) if rng.random() < 0.1 else rng.choice((30.0, 600.0)),
        cache_salt=rng.choice(knobs.salts),
        adapter=rng.choice(("", *knobs.adapters)) if rng.random() < 0.98 else "tiger",
        media=() if knobs.images is None else knobs.images.draw(prompt),
    )
    return submit, prompt
