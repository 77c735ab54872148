"""On PYTHONPATH of an engine under test: its worker answers what a script says, instead of what a model would.

Everything else of `quire serve` is real. `TEST_SCRIPT` names a JSON file, read anew for each prompt: a list of
`{"after": TEXT, "answer": TEXT}`. A prompt is answered by the last entry whose `after` stands in it, so the entries
follow the turns of a conversation: what is asked, then what a tool has answered. A text may hold special tokens.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

if "quire.worker" in sys.orig_argv:
    import numpy as np
    from tokenizers import Tokenizer

    import quire.worker.start as start
    from quire.proto.messages.plans import GroupFacts, StepPlan, StepResult
    from quire.proto.messages.requests import ModelFacts
    from quire.proto.transport.wire import ints
    from quire.worker.loop import Started

    NUM_BLOCKS = 1 << 14
    END = 2
    """Token that ends an answer."""

    class Step:
        """A step that is done when it is launched."""

        def __init__(self, result: StepResult) -> None:
            self.result = result

        def done(self) -> bool:
            return True

    class ScriptedExecutor:
        """Draws an answer's tokens one by one, then the end."""

        def __init__(self, tokenizer: Tokenizer, script: Path) -> None:
            self._tokenizer = tokenizer
            self._script = script
            self._left: dict[int, list[int]] = {}
            """What each slot has still to say, the next token last."""

        def launch(self, plan: StepPlan) -> Step:
            for admit in plan.admits:
                tokens = np.frombuffer(admit.tokens, "<i4").tolist()
                said = tokens[admit.num_prompt :]
                self._left[admit.slot] = self._answer(tokens[: admit.num_prompt])[len(said) :][::-1]
            slots = np.frombuffer(plan.slots, "<i4").tolist()
            rows = [slot for slot, samples in zip(slots, plan.samples, strict=True) if samples]
            drawn = [self._left[slot].pop() if self._left[slot] else END for slot in rows]
            return Step(StepResult(plan.epoch, plan.step, ints(drawn)))

        def collect(self, step: Step) -> StepResult:
            return step.result

        def close(self) -> None:
            """Nothing is held."""

        def _answer(self, prompt: list[int]) -> list[int]:
            text = self._tokenizer.decode(prompt, skip_special_tokens=False)
            fitting = [one["answer"] for one in json.loads(self._script.read_text()) if one["after"] in text]
            return self._tokenizer.encode(fitting[-1], add_special_tokens=False).ids if fitting else []

    def scripted(config: Any, *rest: Any) -> Started[Step]:
        folder = Path(config.model)
        sizes = json.loads((folder / "config.json").read_text())
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        facts = ModelFacts(
            max_model_len=sizes["max_position_embeddings"],
            vocab_size=sizes["vocab_size"],
            eos_token_ids=(END,),
            num_blocks=NUM_BLOCKS,
            block_sizes=(config.block_size,),
            kv_bytes=0,
            weight_bytes=0,
            device="none",
            dtype="float32",
            architecture="Scripted",
            revision="",
        )
        executor = ScriptedExecutor(tokenizer, Path(os.environ["TEST_SCRIPT"]))
        return Started(executor, facts, GroupFacts(), "scripted", ())

    # a forked worker has imported who calls it
    for module in [module for module in sys.modules.values() if vars(module).get("start") is start.start]:
        if module is not start:
            vars(module)["start"] = scripted
    start.start = scripted
