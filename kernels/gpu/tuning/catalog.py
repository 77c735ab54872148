"""Everything that `quire bench tune` measures."""

from quire.kernels.gpu.tuning import (
    activation_trials,
    decode_trials,
    linear_trials,
    norm_trials,
    quantized_trials,
    rope_store_kv_trials,
)
from quire.kernels.gpu.tuning.trial import Trial


def all_trials() -> list[Trial]:
    """The trials of every kernel that has some."""
    kernels = (decode_trials, rope_store_kv_trials, activation_trials, linear_trials, quantized_trials, norm_trials)
    return [trial for kernel in kernels for trial in kernel.trials()]
