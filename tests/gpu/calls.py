"""Thirty minutes on a GPU machine, as commands of less than ten: which parts each runs, what it needs, what it fills.

`python tests/gpu/calls.py` prints them in order. A machine takes a minute or more to start, so they are few and full.
"""

import re
from dataclasses import dataclass

import links

WHEELS = ".build/gpu/wheels"
CACHE = ".build/gpu/triton.tar.gz"
TOTAL_SECONDS = 1800.0
START_SECONDS = 60.0
"""Of a machine, for each call."""
IDLE_SECONDS = 30.0
"""Of a machine behind a call, until it is back: it counts as long as it is held."""
RESULTS = links.ROOT / "tests" / "gpu" / "RESULTS.md"


@dataclass(frozen=True)
class Call:
    commands: tuple[str, ...]
    seconds: float
    """After which it is stopped; the scripts end by themselves before."""
    parts: tuple[str, ...]
    """As the rows of RESULTS.md name them."""
    files: tuple[str, ...]
    """Beside the checkout; git ignores them."""
    then: str


CALLS = (
    Call(
        (f"make gpu-check ARGS='--triton-cache {CACHE}'",),
        560.0,
        ("check: tiny", "check: layers", "check: linears", "check: decode", "check: prefill", "check: sampling",
         "check: encoder", "check: forms", "check: vision", "check: families", "check: experts", "check: heads",
         "check: runner", "check: transformers", "check: group", "check: engine", "check: specialized"),
        (WHEELS,),
        f"Copy triton.tar.gz from $OUT to {CACHE}. Mend what failed. Had check: specialized passed, put "
        '{"prefill": {"specialized": {"trusted": 1}}} into kernels/gpu/tiles/<device>.json. '
        "It is for pages of 64 tokens and more: an engine takes it from --block-size 64 on; those of call 2 have 16, "
        "so name engine, whose Qwen3 has pages of 64, among the parts of call 3.",
    ),
    Call(
        (
            "make gpu-bench ARGS='--seconds 480 --parts ceilings latencies throughput transformers "
            f"--triton-cache {CACHE}'",
        ),
        500.0,
        ("bench: ceilings", "bench: latencies", "bench: throughput", "bench: transformers"),
        (WHEELS, CACHE),
        f"Copy triton.tar.gz from $OUT to {CACHE}. Had an engine not started in call 1, run call 3 first.",
    ),
    Call(
        (
            f"make gpu-check ARGS='--seconds 100 --triton-cache {CACHE} --parts PART ...'  # what call 1 failed",
            "make gpu-bench ARGS='--seconds 350 --parts ceilings tower kernels experts experts_mxfp4 cameras "
            f"cameras_fp8 --triton-cache {CACHE}'",
        ),
        470.0,
        ("bench: tower", "bench: kernels", "bench: experts", "bench: experts_mxfp4", "bench: cameras",
         "bench: cameras_fp8"),
        (WHEELS, CACHE),
        "Write the rows of RESULTS.md and commit them with the JSON files.",
    ),
)  # fmt: skip


def number_of(part: str) -> int:
    """Of the call that runs the part first; KeyError where none does."""
    return {name: number for number, call in enumerate(CALLS, 1) for name in call.parts}[part]


def rows() -> dict[str, list[tuple[str, int]]]:
    """What RESULTS.md says of each row: (part, call), none for what no call runs."""
    found = {}
    for text in RESULTS.read_text().splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if text.startswith("|") and len(cells) > 3 and set(cells[0]) - set("-") and cells[0] != "what":
            runs = re.findall(r"((?:check|bench): \w+) \((\d)\)", text)
            found[cells[0]] = [(part, int(number)) for part, number in runs]
    return found


def total_seconds() -> float:
    """For which machines are held."""
    return sum(START_SECONDS + call.seconds + IDLE_SECONDS for call in CALLS)


def main() -> None:
    print("Before each: make gpu-wheels, which notes the commit too")
    for number, call in enumerate(CALLS, 1):
        print(f"\nCall {number}, at most {call.seconds:.0f} s, with {', '.join(call.files)} beside the checkout:")
        for command in call.commands:
            print(f"    {command}")
        print(f"  runs:  {', '.join(call.parts)}")
        filled = [name for name, runs in rows().items() if any(where == number for _, where in runs)]
        print(f"  fills: {'; '.join(filled)}")
        print(f"  then:  give the machine back at once: idle it counts as well. {call.then}")
    counted = f"{START_SECONDS:.0f} s for each start and {IDLE_SECONDS:.0f} s behind each call counted"
    print(f"\n{total_seconds() / 60:.0f} of {TOTAL_SECONDS / 60:.0f} minutes, {counted}")


if __name__ == "__main__":
    main()
