"""What each part of `check.py` does. Each imports only what it needs."""

from collections.abc import Iterator
from itertools import chain, islice

import chip
from report import Case, Given, Report


def cases(part: str, report: Report, given: Given) -> Iterator[Case]:
    device, folder = given.device, given.folder
    small = device == "cpu"
    few = small or given.stands_in
    """What would only be more of the same lines is left out where no number means anything."""
    match part:
        case "facts":
            import fact_checks

            return fact_checks.facts(report, given)
        case "tiny" | "engine":  # its processes are the ones that use the device
            import engine_checks

            return getattr(engine_checks, part)(report, folder, device, few)
        case "layers":
            import kernel_checks

            return kernel_checks.layers(report, chip.ask(device).torch, small)
        case "linears":
            import coded_expert_checks
            import eight_checks
            import expert_checks
            import f8_block_checks
            import group_checks
            import int8_checks
            import kernel_checks
            import quantized_checks

            rows = kernel_checks.linears, quantized_checks.linears, int8_checks.linears, f8_block_checks.linears
            # numbers that divide no row of tokens, types or kinds: of each shape and type others are left
            of_experts = expert_checks.experts_of_layers, coded_expert_checks.coded_experts_of_layers
            steps = {**dict.fromkeys((*rows, *of_experts), 11), group_checks.groups: 5}
            steps[eight_checks.experts_of_eights] = 7
            listed = ((one(report, chip.ask(device).torch, small), step) for one, step in steps.items())
            return chain.from_iterable(islice(forms, 0, None, step if given.stands_in else 1) for forms, step in listed)
        case "decode" | "prefill" | "specialized":
            import attention_checks

            return getattr(attention_checks, part)(report, chip.ask(device).torch, small)
        case "sampling":
            import sampling_checks

            return sampling_checks.sampling(report, chip.ask(device).torch, small)
        case "encoder":
            import encoder_checks

            return encoder_checks.encoder(report, chip.ask(device).torch, small)
        case "forms":
            import form_checks

            return form_checks.quantized(report, chip.ask(device), folder, small, few, given.stands_in)
        case "vision":
            import vision_checks

            return vision_checks.vision(report, chip.ask(device), folder, small, few)
        case "families" | "experts" | "heads":
            import family_checks
            import head_checks

            runs = {
                "families": (family_checks.families,),
                "experts": (family_checks.experts,),
                "heads": (family_checks.of_library, head_checks.heads),
            }[part]
            compiles = given.stands_in and chip.compiles()
            options = (few and not compiles, compiles)
            return chain.from_iterable(run(report, chip.ask(device), folder, small, *options) for run in runs)
        case "runner" | "transformers" | "group":
            import runner_checks

            return getattr(runner_checks, part)(report, chip.ask(device), folder, small, few)
    raise ValueError(f"part: {part!r} is unknown")
