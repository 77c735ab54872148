"""Flags of text-generation-inference: what changes no answer is taken with a line, the rest named with ours."""

from quire.deploy.flags.vllm_flags import VllmFlag, speed

_ONE_LENGTH = "prompt and output have one limit together; use --max-model-len"

TGI_FLAGS: dict[str, VllmFlag] = {
    # changes no answer
    "cuda-graphs": speed("the sizes of captured graphs follow --max-num-seqs"),
    "disable-custom-kernels": speed("quire has one kernel for each device and operation", bare=True),
    "max-waiting-tokens": speed("new prompts enter with the next step"),
    "validation-workers": speed("long texts are tokenized in processes, others in threads; see --frontends"),
    "waiting-served-ratio": speed("new prompts enter with the next step"),
    # named with ours
    "cors-allow-origin": VllmFlag("use --allowed-origins"),
    "cuda-memory-fraction": VllmFlag("use --gpu-memory-utilization"),
    "hostname": VllmFlag("use --host"),
    "huggingface-hub-cache": VllmFlag("set HF_HOME in the environment"),
    "max-batch-prefill-tokens": VllmFlag("use --max-num-batched-tokens for the tokens of one step"),
    "max-batch-size": VllmFlag("use --max-num-seqs"),
    "max-batch-total-tokens": VllmFlag("use --kv-cache-memory-bytes, or --gpu-memory-utilization"),
    "max-concurrent-requests": VllmFlag("use --max-num-queued-reqs for what waits, --max-num-seqs for what runs"),
    "max-input-length": VllmFlag(_ONE_LENGTH),
    "max-input-tokens": VllmFlag(_ONE_LENGTH),
    "model-id": VllmFlag("write the directory or hub id as MODEL"),
    "num-shard": VllmFlag("use --tensor-parallel-size"),
    "otlp-endpoint": VllmFlag("use --otlp-traces-endpoint"),
    "payload-limit": VllmFlag("use --max-body-bytes"),
    "quantize": VllmFlag("use --quantization"),
    "sharded": VllmFlag("use --tensor-parallel-size"),
    "speculate": VllmFlag("quire does not speculate yet", ("0",)),
}
