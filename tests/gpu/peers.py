"""transformers' continuous batching on the same shapes and the same kind of requests."""

import time
from typing import Any

import numpy as np
import torch
import transformers


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Output tokens per second of the second of two equal runs: the first compiles and captures."""
    device, config = options["device"], dict(options["config"])
    dtype = getattr(torch, config.pop("torch_dtype"))
    architecture = config.pop("architectures")[0]
    kind = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    torch.manual_seed(options["seed"])
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(kind, dtype=dtype, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    generation = transformers.GenerationConfig(
        max_new_tokens=options["output_len"], do_sample=False, eos_token_id=None, pad_token_id=0
    )
    batching = None
    if device == "cpu":  # elsewhere it measures the memory it may take
        batching = transformers.ContinuousBatchingConfig(num_blocks=64, block_size=32, max_batch_tokens=256)
    random = np.random.default_rng(options["seed"])
    prompts = random.integers(0, config["vocab_size"], (options["requests"], options["input_len"])).tolist()
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        results = model.generate_batch(
            prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
        )
        seconds.append(time.perf_counter() - begin)
        lengths = [len(result.generated_tokens) for result in results.values()]
        if lengths != [options["output_len"]] * options["requests"]:
            raise RuntimeError(f"{architecture}: asked for {options['output_len']} tokens each, got {lengths}")
    return {
        "output_tokens_per_s": options["output_len"] * options["requests"] / seconds[-1],
        "seconds": seconds,
        "transformers": transformers.__version__,
        "attention": model.config._attn_implementation,
    }
