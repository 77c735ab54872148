"""Train the small default model that ships in `deploy/model/`.

The corpus is the Python standard library of the running interpreter, so nothing is downloaded and everybody can
retrain the model. The result is a Hugging Face folder: tokenizer, configuration, bfloat16 weights and a model card.

    python -m quire.deploy.training.train_model --out deploy/model --minutes 60 --threads 2

The seed fixes the data, its order and the initial weights. The schedule follows the wall clock, so that training
ends on time on any machine; the number of steps, and with it the exact weights, therefore differ between machines.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from quire.deploy.training.corpus import END_OF_TEXT, IM_END, SPECIAL, VOCABULARY, batches, make_streams

CONTEXT = 4096

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "hidden_act": "silu",
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attention_bias": False,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END_OF_TEXT,
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# (share of the time at which the phase ends, tokens in a sequence). Short sequences teach the language first; the long
# ones teach the positions that a short sequence never reaches.
PHASES = ((0.3, 512), (0.8, 2048), (1.0, CONTEXT))
WARMUP_STEPS = 50
CHECKPOINT_SECONDS = 300.0


@dataclass
class Progress:
    """Progress of the training, for the log and the model card."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    train_loss: float = math.nan
    val_loss: float = math.nan
    corpus: str = ""

    def metadata(self) -> dict[str, str]:
        """State a resumed run needs; it travels in the header of the weights."""
        return {"format": "pt", "step": str(self.step), "tokens": str(self.tokens), "seconds": str(self.seconds)}


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def validate(model: torch.nn.Module, stream: torch.Tensor, length: int = 1024) -> float:
    """Mean loss over the held-out stream, cut into windows of `length` tokens."""
    windows = [stream[at : at + length + 1] for at in range(0, len(stream) - length - 1, length)]
    return sum(loss_of(model, window[None]).item() for window in windows) / len(windows)


def learning_rate(peak: float, step: int, share: float) -> float:
    """Linear warm-up by steps, then a cosine that reaches its end when the time is used up."""
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


def write(path: Path, content: bytes | str | dict[str, Any]) -> None:
    """Replace a file in one move, so that somebody who loads the model meanwhile never reads half of it."""
    if isinstance(content, dict):
        content = json.dumps(content, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)


def write_static(out: Path, tokenizer: Tokenizer) -> None:
    """Everything that does not change while the weights are trained."""
    out.mkdir(parents=True, exist_ok=True)
    roles = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    write(out / "tokenizer.json", tokenizer.to_str(pretty=False))
    write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **roles,
            "additional_special_tokens": list(SPECIAL[1:]),
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write(out / "special_tokens_map.json", {**roles, "additional_special_tokens": list(SPECIAL[1:])})
    write(out / "config.json", CONFIG)
    # A conversation ends with <|im_end|>, a file with <|endoftext|>: generation has to stop at either.
    write(
        out / "generation_config.json",
        {
            "bos_token_id": END_OF_TEXT,
            "eos_token_id": [END_OF_TEXT, IM_END],
            "pad_token_id": END_OF_TEXT,
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 0.95,
        },
    )


CARD = """\
# quire-stdlib-{size:.1f}M

The default model of quire: a Llama-architecture network of {parameters:,} parameters (tied embeddings, bfloat16,
context {max_position_embeddings}), small enough to lie in the repository. It writes text that looks like Python.
It exists so that the engine can be started, tested and measured without a download; it knows nothing, and its code
is not to be relied on.

| | |
|---|---|
| Shape | {num_hidden_layers} layers, hidden {hidden_size}, MLP {intermediate_size}, vocabulary {vocab_size} |
| Attention | {num_attention_heads} heads of {head_dim}, {num_key_value_heads} key/value heads |
| Data | standard library of CPython {python} without tests: {corpus} |
| Training | {step:,} steps, {tokens:,} tokens, {minutes:.0f} minutes on {threads} CPU threads, AdamW |
| Training loss | {train_loss:.3f} nats for each token (mean of the last steps) |
| Validation loss | **{val_loss:.3f}** nats for each token, {bits:.2f} bits for each byte |
| Validation perplexity | **{perplexity:.2f}** |

The loss on the held-out modules is measured with the bfloat16 weights as stored here, in windows of 1024 tokens. The
figures of the training are sums over all runs: one that is given `--resume` goes on from the weights of the last.

The tokenizer is a byte-level BPE made from the same training files; any text survives the round trip.
`<|endoftext|>` separates files. The chat template is ChatML (`<|im_start|>role ... <|im_end|>`): about a tenth of the
training data are conversations in which the user gives a docstring and the assistant answers with the function.

Retrain: `python -m quire.deploy.training.train_model --out deploy/model --minutes {minutes:.0f} --threads {threads}`.

**Licence of the data.** The Python standard library is copyright of the Python Software Foundation and its
contributors and is distributed under the PSF License Agreement (https://docs.python.org/3/license.html). A model this
small can repeat passages of it word for word; such passages stay under that licence.
"""


def write_checkpoint(
    out: Path, model: torch.nn.Module, progress: Progress, validation: torch.Tensor, bytes_per_token: float
) -> None:
    """Store the weights as bfloat16, and a card with the loss measured with just these rounded weights."""
    rounded = copy.deepcopy(model).bfloat16()
    # The output projection is the embedding; it is not stored a second time.
    tensors = {name: tensor for name, tensor in rounded.state_dict().items() if name != "lm_head.weight"}
    write(out / "model.safetensors", save(tensors, metadata=progress.metadata()))
    progress.val_loss = validate(rounded.float(), validation)
    parameters = sum(p.numel() for p in model.parameters())
    write(
        out / "README.md",
        CARD.format(
            **CONFIG,
            **vars(progress),
            size=parameters / 1e6,
            parameters=parameters,
            python=platform.python_version(),
            minutes=progress.seconds / 60,
            threads=torch.get_num_threads(),
            perplexity=math.exp(progress.val_loss),
            bits=progress.val_loss / math.log(2) / bytes_per_token,
        ),
    )
    print(f"checkpoint: {progress}", flush=True)


def load_weights(out: Path, model: torch.nn.Module, progress: Progress) -> None:
    """Go on from the weights in `out`. The optimizer starts anew: its state is not kept."""
    with safe_open(out / "model.safetensors", framework="pt") as file:
        model.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()}, strict=False)  # noqa: SIM118
        done = file.metadata()
    progress.step, progress.tokens, progress.seconds = int(done["step"]), int(done["tokens"]), float(done["seconds"])


def train(out: Path, seconds: float, peak: float, seed: int, resume: bool) -> None:
    """Train until the time is used up, leaving a usable model in `out` every few minutes."""
    torch.manual_seed(seed)
    begin = saved = time.monotonic()
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json")) if resume else None
    tokenizer, training, validation, bytes_per_token, corpus = make_streams(seed, tokenizer)
    write_static(out, tokenizer)
    progress = Progress(corpus=corpus)
    print(corpus, flush=True)
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**CONFIG))  # type: ignore[no-untyped-call]
    model.float()
    if resume:
        load_weights(out, model, progress)
    steps_before, seconds_before = progress.step, progress.seconds
    # A resumed run cuts the stream at other places than the run before it.
    rng = torch.Generator().manual_seed(seed + steps_before)
    # Decay is for matrices only: pulling the gains of the norms towards zero would do harm.
    decayed, plain = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    feeds = {length: batches(training, length, rng) for _, length in PHASES}
    while (share := (time.monotonic() - begin) / seconds) < 1:
        batch = next(feeds[next(length for end, length in PHASES if share < end)])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(peak, progress.step - steps_before, share)
        loss = loss_of(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent = loss.item() if math.isnan(progress.train_loss) else progress.train_loss
        progress.train_loss = 0.98 * recent + 0.02 * loss.item()
        progress.step, progress.tokens = progress.step + 1, progress.tokens + batch.numel() - len(batch)
        progress.seconds = seconds_before + time.monotonic() - begin
        if progress.step % 50 == 0:
            print(f"{progress.seconds:6.0f} s  step {progress.step}  loss {progress.train_loss:.3f}", flush=True)
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            write_checkpoint(out, model, progress, validation, bytes_per_token)
            saved = time.monotonic()
    write_checkpoint(out, model, progress, validation, bytes_per_token)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "model", help="folder of the model")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for the training, preparation included")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak of the learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from the weights in the folder")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.out, arguments.minutes * 60, arguments.rate, arguments.seed, arguments.resume)


if __name__ == "__main__":
    main()
