"""The random numbers of `quire.kernels.sampling.random` inside Triton kernels: the same counters, the same words."""

import triton
import triton.language as tl


@triton.jit
def random_words(seed, position, output_index, items, STREAM: tl.constexpr):
    """uint32 like `items`: word item % 4 of the Philox-4x32-10 block of counter (position, output, item // 4, stream).

    Every item computes its whole block. In kernels that reduce many logits for each item this costs nothing extra:
    a tensor of so few items is held by all warps alike.
    """
    groups = (items // 4).to(tl.uint32)
    zero = groups * 0
    w0, w1, w2, w3 = tl.philox(
        seed, zero + position.to(tl.uint32), zero + output_index.to(tl.uint32), groups, zero + STREAM
    )
    word = items % 4
    return tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))


@triton.jit
def gumbel(seed, position, output_index, items, STREAM: tl.constexpr):
    """Standard Gumbel noise, float32 like `items`, from the 23 high bits of each word."""
    words = random_words(seed, position, output_index, items, STREAM)
    uniform = ((words >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -tl.log(-tl.log(uniform))
