"""transformers in this process: workload (b) in float32, three ways."""

import time

from peers.shape import SHAPE

REQUESTS = {"one at a time": 6, "static batches": 32, "continuous batching": 64}


def transformers_rates() -> dict[str, float]:
    """Output tokens per second of each way, after a warm-up of it."""
    import torch
    import transformers

    torch.manual_seed(0)
    fields = {name: value for name, value in SHAPE.items() if name not in ("architectures", "torch_dtype")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.randint(1, 32_000, (64, 128))
    greedy = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}

    def in_batches(requests: int, size: int) -> None:
        for first in range(0, requests, size):
            ids = prompts[first : first + size]
            model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)

    def continuous(requests: int) -> None:
        config = transformers.GenerationConfig(max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)
        batching = transformers.ContinuousBatchingConfig(num_blocks=256, block_size=32, max_batch_tokens=256)
        results = model.generate_batch(
            prompts[:requests].tolist(),
            generation_config=config,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        lengths = [len(result.generated_tokens) for result in results.values()]
        if lengths != [64] * requests:
            raise RuntimeError(f"transformers was asked for 64 tokens each and made {lengths}")

    ways = {
        "one at a time": lambda count: in_batches(count, 1),
        "static batches": lambda count: in_batches(count, 16),
        "continuous batching": continuous,
    }
    rates = {}
    for name, way in ways.items():
        way(1 if name == "one at a time" else 16)
        begin = time.perf_counter()
        way(REQUESTS[name])
        rates[name] = REQUESTS[name] * 64 / (time.perf_counter() - begin)
    return rates
