"""The rope part of a config.json, in its old form (rope_theta, rope_scaling) and its new one (rope_parameters)."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from quire.worker.fields import Config, counts, flag, integer, number, shown
from quire.worker.weights.parts import ModelError

DEFAULT_THETA = 10000.0
MAX_FACTOR = 1e6
AXES = 3
"""Time, rows, columns."""
MAX_PAIRS = 4096
"""Most pairs of one axis: each has a number of its own."""

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "none"]
ROPE_TYPES: tuple[str, ...] = tuple(name for name in get_args(RopeType) if name != "none")
"""Types that a config may state."""
STRETCHED: tuple[RopeType, ...] = ("llama3", "yarn", "longrope")
"""Those that know the length before it was stretched."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rule by which positions become angles. Fields past `factor` matter to the types that name them."""

    type: RopeType
    theta: float
    head_dim: int
    """Elements of a head that rotate."""
    original_max_position: int
    """Context length before stretching."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    """llama3"""
    high_freq_factor: float = 4.0
    """llama3"""
    attention_factor: float = 1.0
    """yarn: cos and sin are multiplied by it"""
    beta_fast: float = 32.0
    """yarn"""
    beta_slow: float = 1.0
    """yarn"""
    truncate: bool = True
    """yarn: round the borders of its ramp to whole dimensions"""
    query_beta: float = 0.0
    """Ministral 3: queries at position p count 1 + query_beta * ln(1 + floor(p / queries_grow_every)) times"""
    query_length: int = 0
    """The tokens after which they grow, where these are not those of original_max_position"""
    counts_own: bool = False
    """Llama 4: they count by p + 1, of which their own token is one"""
    num_turning: int = 0
    """proportional: pairs of a head that turn, the first ones; the others stay"""
    factors: tuple[float, ...] = ()
    """longrope: the wavelength of each pair is so many times as long"""
    short_factors: tuple[float, ...] = ()
    """longrope: the same for contexts that are not stretched"""
    interleaved: bool = False
    """The checkpoint has the elements of a pair side by side: they are put apart when it is loaded."""
    pair_axes: tuple[int, ...] = ()
    """Axis of the position by which each of the head_dim / 2 pairs turns; empty: positions have one axis."""

    @property
    def queries_grow_every(self) -> int:
        """Tokens after which queries count for more."""
        return self.query_length or self.original_max_position

    @property
    def num_axes(self) -> int:
        return max(self.pair_axes, default=0) + 1

    def within(self, length: int) -> "RopeSpec":
        """The same for contexts of so many tokens: within the original length nothing grows or is stretched."""
        reached = length + self.counts_own
        beta = self.query_beta if reached > self.queries_grow_every else 0.0
        factors = self.factors if reached > self.original_max_position else self.short_factors
        return replace(self, query_beta=beta, factors=factors)

    @property
    def choice(self) -> str:
        """The factors that were chosen by the longest context, in words; empty where there was no choice."""
        if not self.factors:
            return ""
        original = self.original_max_position
        if self.factors == self.short_factors:
            return f"longrope, its factors for contexts within {original} tokens"
        return f"longrope, its factors for contexts beyond {original} tokens; max_model_len {original} takes the others"

    @property
    def unturned(self) -> "RopeSpec":
        """The rope of layers beside it that have none: it turns nothing."""
        return RopeSpec("none", self.theta, self.head_dim, self.original_max_position, interleaved=self.interleaved)


def read_rope(config: Config, head_dim: int, *, partial: float | None = None, theta: float = DEFAULT_THETA) -> RopeSpec:
    """ModelError for an unknown type, a missing factor, or parameters that differ between layers.

    `partial`: the part of a head that rotates where none is stated; None: whole heads rotate, whatever is. `theta`: the
    base where none is stated.
    """
    stated = rope_parameters(config)
    rope_type = stated.get("rope_type", stated.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ModelError("rope_type", f"{shown(rope_type)} is not supported; supported: {', '.join(ROPE_TYPES)}")
    max_position = integer(config, "max_position_embeddings")
    theta = number(stated, "rope_theta", number(config, "rope_theta", theta))
    if theta <= 1:
        raise ModelError("rope_theta", f"the base of the angles must be greater than 1, got {theta}")
    if rope_type == "proportional":
        return _proportional(stated, theta, head_dim, max_position)
    head_dim = _rotating(config, stated, head_dim, partial)
    common: dict[str, Any] = {"type": cast(RopeType, rope_type), "theta": theta, "head_dim": head_dim}
    if rope_type == "default":
        return RopeSpec(**common, original_max_position=max_position)
    if rope_type in ("linear", "dynamic"):
        return RopeSpec(**common, original_max_position=max_position, factor=_factor(stated))
    inside = integer(stated, "original_max_position_embeddings", max_position)
    common["original_max_position"] = integer(config, "original_max_position_embeddings", inside)
    if rope_type == "llama3":
        low, high = number(stated, "low_freq_factor"), number(stated, "high_freq_factor")
        if high < low:
            raise ModelError("high_freq_factor", f"must be at least low_freq_factor = {low}, got {high}")
        return RopeSpec(**common, factor=_factor(stated), low_freq_factor=low, high_freq_factor=high)
    return _longrope(stated, common, max_position) if rope_type == "longrope" else _yarn(stated, common, max_position)


def _rotating(config: Config, stated: Config, head_dim: int, partial: float | None) -> int:
    """Elements of a head that rotate."""
    part = stated.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is None and part not in (None, 1, 1.0):
        raise ModelError("partial_rotary_factor", f"these architectures rotate whole heads, got {shown(part)}")
    if partial is not None:
        left_out = partial if "partial_rotary_factor" not in config else 1.0  # null is not left out
        part = number({"partial_rotary_factor": part}, "partial_rotary_factor", left_out)
        if part > 1:
            raise ModelError("partial_rotary_factor", f"must be at most 1, got {part}")
        head_dim = int(head_dim * part)
    if head_dim % 2 or not head_dim:
        raise ModelError("head_dim", f"rotary positions turn pairs, so it must be even, got {head_dim}")
    return head_dim


def of_layer_type(config: Config, kind: str, theta: float) -> Config:
    """The config as layers of one kind read it, whose rope has a section of its own in `rope_parameters`.

    A rope that is stated in the old form is that of full attention. `theta`: the base of this kind where none is
    stated. Raises ModelError.
    """
    sections, scaling = (config.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    is_split = isinstance(sections, dict) and all(isinstance(one or {}, dict) for one in sections.values())
    if not is_split or not isinstance(scaling, dict):
        raise ModelError("rope_parameters", f"must be an object for each kind of layer, got {shown(sections)}")
    own = sections.get(kind) or {}
    if kind == "full_attention":
        own, theta = {**own, **scaling}, number(config, "rope_theta", theta)
    # transformers seeks the one beside the sections, and the other within them
    own = {key: value for key, value in own.items() if key != "truncate"}
    outside = {"original_max_position_embeddings": None, "rope_scaling": None}
    return {**config, "rope_parameters": {"rope_theta": theta, **own}, **outside}


def read_pair_axes(config: Config, head_dim: int, sections: tuple[int, ...], *, interleaved: bool) -> tuple[int, ...]:
    """The axis by which each pair turns where positions have one for time, one for rows and one for columns.

    `mrope_section` says how many pairs an axis has; `mrope_interleaved` deals them out in turns, else they lie section
    by section. `sections`, `interleaved`: what is meant where they are left out. Source: Qwen2-VL, Qwen3-VL.
    """
    stated = rope_parameters(config)
    pairs, sections = head_dim // 2, counts(stated, "mrope_section", sections, most=MAX_PAIRS)
    if len(sections) != AXES or sum(sections) != pairs:
        raise ModelError("mrope_section", f"must be {AXES} numbers whose sum is {pairs}, got {shown(list(sections))}")
    if flag(stated, "mrope_interleaved", interleaved):
        return tuple(pair % AXES if pair // AXES < sections[pair % AXES] else 0 for pair in range(pairs))
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))


def max_model_len(rope: RopeSpec, max_position: int) -> int:
    """Tokens the stretched context holds. llama3 configs already state the stretched length."""
    if rope.type in ("linear", "dynamic"):
        return int(max_position * rope.factor)
    if rope.type == "yarn":
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def rope_parameters(config: Config) -> dict[str, Any]:
    """The section of either form; empty where there is none. Raises ModelError."""
    stated = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(stated, dict):
        raise ModelError("rope_parameters", f"must be an object, got {shown(stated)}")
    if any(isinstance(value, dict) for value in stated.values()):
        raise ModelError("rope_parameters", "parameters that differ between layers are not supported")
    return stated


def _proportional(stated: Config, theta: float, head_dim: int, max_position: int) -> RopeSpec:
    """Gemma 4: some pairs of a whole head turn, at the frequencies that they have where all do."""
    part = number(stated, "partial_rotary_factor", 1.0)
    if part > 1 or head_dim % 2:
        raise ModelError("partial_rotary_factor", f"must be at most 1, of an even head_dim, got {part} of {head_dim}")
    factor = 1.0 if stated.get("factor") is None else _factor(stated)
    return RopeSpec("proportional", theta, head_dim, max_position, factor=factor, num_turning=int(part * head_dim // 2))


def _factor(stated: Config) -> float:
    factor = number(stated, "factor")
    if not 1.0 <= factor <= MAX_FACTOR:
        raise ModelError("factor", f"the rope factor must be at least 1, and at most {MAX_FACTOR:g}, got {factor}")
    return factor


def _longrope(stated: Config, common: dict[str, Any], max_position: int) -> RopeSpec:
    """LongRoPE (Ding et al., 2024): each pair has a factor of its own, found by search."""
    original, pairs = common["original_max_position"], common["head_dim"] // 2
    factor = number(stated, "factor", max_position / original)
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeSpec(
        **common,
        factor=factor,
        attention_factor=_scale(stated, "attention_factor", inferred),
        factors=_factors(stated, "long_factor", pairs),
        short_factors=_factors(stated, "short_factor", pairs),
    )


def _factors(stated: Config, name: str, pairs: int) -> tuple[float, ...]:
    values = stated.get(name)
    if not isinstance(values, list) or len(values) != pairs:
        raise ModelError(name, f"must be a list of {pairs} numbers, one for each pair that turns, got {shown(values)}")
    return tuple(_scale({name: value}, name) for value in values)


def _yarn(stated: Config, common: dict[str, Any], max_position: int) -> RopeSpec:
    """As transformers computes it: a factor of null is that of the lengths, borders of null or 0 are the usual ones,
    `truncate` of null is false."""
    is_inferred = "factor" in stated and stated["factor"] is None
    factor = _factor({"factor": max_position / common["original_max_position"]} if is_inferred else stated)
    mscale, of_all = (_scale(stated, name) if stated.get(name) else 0.0 for name in ("mscale", "mscale_all_dim"))
    inferred = _yarn_attention_factor(factor, mscale, of_all)
    return RopeSpec(
        **common,
        factor=factor,
        attention_factor=_scale(stated, "attention_factor", inferred),
        beta_fast=_scale(stated, "beta_fast") if stated.get("beta_fast") else 32.0,
        beta_slow=_scale(stated, "beta_slow") if stated.get("beta_slow") else 1.0,
        truncate=flag(stated, "truncate", "truncate" not in stated),
    )


def _scale(stated: Config, name: str, default: float | None = None) -> float:
    """A number of which neither a product nor a logarithm runs out of floats."""
    value = number(stated, name, default)
    if not 1 / MAX_FACTOR <= value <= MAX_FACTOR:
        raise ModelError(name, f"must be in [{1 / MAX_FACTOR:g}, {MAX_FACTOR:g}], got {value}")
    return value


def _yarn_attention_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """YaRN's correction of the attention's temperature when the config states none (section 3.4 of the paper).

    `mscale`, `mscale_all_dim`: 0 where they are not stated.
    """

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)
