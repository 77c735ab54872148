"""What transformers adds to prompts: the reference of engines that draw the likeliest token."""

from collections.abc import Sequence
from pathlib import Path

from parts.recorded import recorded


def continued(folder: Path, prompts: Sequence[Sequence[int]], count: int, **options: object) -> list[list[int]]:
    """The `count` tokens that follow each prompt by the model in a folder, in float32; nothing ends it before.

    On record, with the folder's config and weights, the prompts and the count (`parts.recorded`). `options`: of
    `from_pretrained`.
    """

    def compute() -> list[list[int]]:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
        found = []
        for prompt in prompts:
            ids = torch.tensor([list(prompt)])
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            found.append(made[0, len(prompt) :].tolist())
        return found

    return recorded("continued", [folder, [list(prompt) for prompt in prompts], count, options], compute)
