"""Changes of logits before a token is sampled: penalties for tokens that occurred, and masks of allowed tokens.

Shape legend: S rows of logits, P of them that are changed, V vocabulary, N slots, L tokens a slot holds.
"""

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.sampling.logits import check_columns, check_logits


def penalize_reference(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    num_tokens: torch.Tensor,
    num_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Penalise, in place, `rows` int64 [P] (distinct) of `logits` float32 [S, V] for tokens of their history.

    Repetition: a token that occurs in prompt or output has its positive logit divided, its negative one multiplied
    (Keskar et al., "CTRL", 2019). Frequency and presence, as in the OpenAI API: minus frequency times the number of
    occurrences in the output, minus presence if there is one. The history of row p are the first num_tokens[p] of
    `tokens[slots[p]]` (int32 [N, L]), of which the first num_prompt[p] are the prompt; ids outside the vocabulary are
    passed over. The rest: [P].
    """
    longest = int(num_tokens.max()) if len(num_tokens) else 0
    if not longest:
        return
    vocab = logits.shape[1]
    ids = tokens[:, :longest].index_select(0, slots).long()
    index = torch.arange(longest, device=logits.device)
    seen = (index < num_tokens[:, None]) & (ids >= 0) & (ids < vocab)
    # every other entry stands for a seen one of its row, so that one id is always written with one value
    ids = torch.where(seen, ids, ids.gather(1, seen.byte().argmax(dim=1, keepdim=True))).clamp_(0, vocab - 1)
    output = seen & (index >= num_prompt[:, None])
    counts = logits.new_zeros((len(rows), vocab)).scatter_add_(1, ids, output.float()).gather(1, ids)
    values = logits[rows[:, None], ids]
    factor = repetition[:, None]
    penalised = torch.where(values > 0, values / factor, values * factor)
    penalised -= frequency[:, None] * counts + presence[:, None] * (counts > 0)
    logits[rows[:, None], ids] = torch.where(seen.any(dim=1, keepdim=True), penalised, values)


def mask_tokens_reference(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Forbid, in place, tokens of `rows` int64 [P] (distinct) of `logits` float32 [S, V].

    `bitmask` int32 [P, ceil(V / 32)]: where bit i % 32 of word i // 32 is unset, logit i becomes -inf.
    """
    octets = bitmask.contiguous().view(torch.uint8)  # little-endian: bit i of the row is bit i % 8 of octet i // 8
    bits = (octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=logits.device)) & 1
    forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    for row, banned in zip(rows.tolist(), forbidden, strict=True):
        logits[row].masked_fill_(banned, -torch.inf)


def _check_penalize(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    num_tokens: torch.Tensor,
    num_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    check_logits(logits, (torch.float32,))
    check_tensor("tokens", tokens, (None, None), (torch.int32,), logits.device)
    if tokens.shape[1] > 1 and tokens.stride(1) != 1:
        raise ValueError(f"tokens: each row must be contiguous, got strides {list(tokens.stride())}")
    size = rows.numel()
    check_columns(
        size, torch.int64, logits.device, rows=rows, slots=slots, num_tokens=num_tokens, num_prompt=num_prompt
    )
    check_columns(size, torch.float32, logits.device, repetition=repetition, presence=presence, frequency=frequency)


def _check_mask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    check_logits(logits, (torch.float32,))
    check_columns(rows.numel(), torch.int64, logits.device, rows=rows)
    words = -(-logits.shape[1] // 32)
    check_tensor("bitmask", bitmask, (rows.numel(), words), (torch.int32,), logits.device)
    check_contiguous(bitmask=bitmask)


penalize = Operation(
    penalize_reference,
    _check_penalize,
    {
        "cuda": "quire.kernels.gpu.sampling.penalize:penalize",
        "cpu": "quire.kernels.cpu.sampling.penalize:penalize",
    },
)
mask_tokens = Operation(
    mask_tokens_reference,
    _check_mask,
    {
        "cuda": "quire.kernels.gpu.sampling.penalize:mask_tokens",
        "cpu": "quire.kernels.cpu.sampling.penalize:mask_tokens",
    },
)
