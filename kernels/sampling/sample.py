"""Sampling: logits to one token per row, by a choice whose randomness is a pure function.

The draw is Gumbel-max in two levels: first one of the tiles of 128 tokens, by the log of its mass plus noise, then a
token of that tile. By the Gumbel-max identity (Maddison, Tarlow, Minka, "A* sampling", 2014, section 2) the result is
distributed exactly as the softmax, and a row costs a few hundred random numbers, not one for each token of the
vocabulary.

Shape legend: S rows, V vocabulary.
"""

import torch

from quire.kernels.dispatch import Operation
from quire.kernels.sampling.logits import check_columns, check_logits
from quire.kernels.sampling.random import gumbel

TILE = 128
TOKEN_STREAM = 0
TILE_STREAM = 1


def sample_reference(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """int64 [S]: one token per row of `logits` [S, V].

    Temperature 0 (float32 [S]): the likeliest token, the lowest id among equals. Else one from
    softmax(logits / temperature) of the logits not below `floor` float32 [S] (see `top_k_top_p`), by numbers that
    depend on seed, position of the drawn token in its sequence and output index alone (int64 [S]). A row with NaN or
    +inf gives some token id.
    """
    token_ids = logits.argmax(dim=-1)
    rows = (temperature > 0.0).nonzero().squeeze(1)
    if len(rows):
        columns = (column[rows] for column in (floor, temperature, seeds, positions, output_index))
        token_ids[rows] = draw(logits[rows], *columns)
    return token_ids


def draw(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """`sample` for rows whose temperature is above 0."""
    num_rows, vocab = logits.shape
    num_tiles = -(-vocab // TILE)
    wide = logits.float()
    high = wide.amax(dim=-1, keepdim=True)
    padded = wide.new_zeros((num_rows, num_tiles * TILE))
    # the exponent is never above 0, so no temperature > 0 is too small for float32
    weights = torch.sub(wide, high, out=padded[:, :vocab]).div_(temperature[:, None]).exp_()
    if torch.isfinite(floor).any():
        weights.mul_(wide >= floor[:, None])
    mass = padded.view(num_rows, num_tiles, TILE).sum(dim=-1)
    noise = gumbel(seeds, positions, output_index, torch.zeros_like(seeds), -(-num_tiles // 4), TILE_STREAM)
    tile = (mass.log_() + noise[:, :num_tiles]).argmax(dim=-1)
    ids = tile[:, None] * TILE + torch.arange(TILE, device=logits.device)
    inside = wide.gather(1, ids.clamp(max=vocab - 1))
    inside.masked_fill_((inside < floor[:, None]) | (ids >= vocab), -torch.inf).sub_(high).div_(temperature[:, None])
    noise = gumbel(seeds, positions, output_index, tile * (TILE // 4), TILE // 4, TOKEN_STREAM)
    # a NaN row may point into the padding; its token is meaningless but must be an id
    return ids.gather(1, (inside + noise).argmax(dim=-1, keepdim=True)).squeeze(1).clamp_(max=vocab - 1)


def _check(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> None:
    check_logits(logits)
    size = logits.shape[0]
    check_columns(size, torch.float32, logits.device, floor=floor, temperature=temperature)
    check_columns(size, torch.int64, logits.device, seeds=seeds, positions=positions, output_index=output_index)


sample = Operation(
    sample_reference,
    _check,
    {"cuda": "quire.kernels.gpu.sampling.sample:sample", "cpu": "quire.kernels.cpu.sampling.sample:sample"},
)
