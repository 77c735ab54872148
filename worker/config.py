"""Configuration of one worker process, frozen after its start. No torch here: deploy imports this file."""

from typing import Literal

import msgspec

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
MOST_THREADS = 1024
ENCODER_TYPES = ("bert", "roberta", "xlm-roberta")
"""`model_type` of the models that read a whole prompt in one step, so that a step must hold the longest."""
KVDtype = Literal["auto", "bfloat16", "float16", "fp8", "int8"]
AskedTask = Literal["auto", "generate", "pooling", "embed", "classify", "score", "reward"]
"""pooling: as auto, but for generating."""
ModelImpl = Literal["auto", "quire", "transformers"]
TowerMode = Literal["data", "weights"]
PrefillBody = Literal["auto", "plain", "specialized"]
Quantization = Literal[
    "none",
    "int8",
    "fp8",
    "int4",
    "compressed-tensors",
    "fbgemm_fp8",
    "awq",
    "awq_marlin",
    "gptq",
    "gptq_marlin",
    "mxfp4",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "gguf",
]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for all ranks; rank and epoch come on the command line."""

    scheduler_address: str = ""
    run_dir: str = ""
    """Private directory of the deployment; the rendezvous file of an epoch lies in it."""
    model: str = ""
    """Directory with config.json and the weights."""
    tokenizer: str = ""
    """Directory of tokenizer.json, for grammars; empty is `model`."""
    task: AskedTask = "auto"
    """auto: by the checkpoint."""
    model_impl: ModelImpl = "auto"
    """quire: decoders and encoders of our own; transformers: the modules of that library; auto: those for what we have
    none of our own."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    dtype: Dtype = "auto"
    """auto: the checkpoint's on CUDA, but bfloat16 for float32 beside quantized weights; on CPU bfloat16 where
    checkpoint and processor have it, else float32, and activations of 8 bits beside weights in groups, which any other
    name leaves as they are."""
    quantization: Quantization = "none"
    """none: what the checkpoint states. int8, fp8, int4: the linear layers of an unquantized one, when they are loaded.

    A name that the checkpoint states means that.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int = 0
    """0: the model's own context length (or what the KV memory holds, if less)."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_dtype: KVDtype = "auto"
    """auto: what the checkpoint states, else the model's; fp8: 8-bit floats (e4m3) and scales; int8: 8-bit integers
    with a scale for each token and head, CPU only.

    Others than the model's halve what attention reads: 8 bits of 16, and on CPUs 16 of float32.
    """
    calculate_kv_scales: bool = False
    """Make the scales of a cache of 8-bit floats at the start; the checkpoint's are left out."""
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int = 0
    """0: measured on CUDA; on CPU 4 GiB or a quarter of the free memory, whichever is less."""
    language_model_only: bool = False
    """Text alone, of a model that also reads images: its tower is not loaded."""
    max_num_encoder_patches: int = 8192
    """Patches that one step encodes at most, but for a single larger item."""
    mm_encoder_cache_bytes: int = 0
    """Encoder memory of one rank; 0: what holds the items of four steps, or the model's largest image."""
    mm_encoder_tp_mode: TowerMode = "data"
    """data: whole items are dealt to the ranks, each of which holds the tower; weights: they share its heads and its
    feed-forward, and encode every item together."""
    enable_expert_parallel: bool = False
    """Deal whole experts to the ranks, which else hold a share of the inner axis of every one."""
    enforce_eager: bool = False
    prefill_body: PrefillBody = "auto"
    """Body of attention for prompts on compute capability 9.0.

    auto: the specialized one where a run of it on this chip is on record.
    """
    seed: int = 0
    """Seed of dummy weights."""
    mlock: bool = False
    """Keep the weights in memory, CPU only: the system may not write them to swap."""
    num_threads: int = 0
    """CPU threads of one rank; 0: the machine's cores divided by the ranks."""
    flags: dict[str, str] = {}
    """Field -> what the operator calls it: refusals name that."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        for field in (
            "tensor_parallel_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_encoder_patches",
            "block_size",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, got {getattr(self, field)}")
        for field in ("max_model_len", "kv_cache_memory_bytes", "mm_encoder_cache_bytes", "num_threads"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}: must not be negative, got {getattr(self, field)}")
        if self.num_threads > MOST_THREADS:
            raise ValueError(f"num_threads: must be at most {MOST_THREADS}, got {self.num_threads}; 0 takes all cores")
        if self.block_size & (self.block_size - 1) or self.block_size > 256:
            raise ValueError(f"block_size: must be a power of two up to 256, got {self.block_size}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization: must be in (0, 1], got {self.gpu_memory_utilization}")
