"""Tiny random checkpoints of GLM-4.1V, and of GLM-4.5V, which has experts."""

import tiny_qwen_vl
from tiny_qwen_vl import MERGE, TinyQwen

PATCH = 14
SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|begin_of_video|>", "<|end_of_video|>")
IMAGES = ("<|begin_of_image|>", "<|end_of_image|>")
TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '<|begin_of_image|><|image|><|end_of_image|>' }}
{%- elif part.type == 'video' %}
{{- '<|begin_of_video|><|video|><|end_of_video|>' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>\n' }}
{%- endif %}
"""
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
TEXT = {**tiny_qwen_vl.TEXT, "rope_parameters": ROPE}
MOE_TEXT = {
    **TEXT,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "intermediate_size": 40,
    "image_size": 4 * PATCH,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "initializer_range": 0.15,
}


class TinyGlm(TinyQwen):
    """A family whose bounds of pixels count an image twice."""

    @property
    def library_processor(self):
        from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

        return Glm4vImageProcessorPil


OWN = {
    "image": "<|image|>",
    "video": "<|video|>",
    "special": (*SPECIAL, *IMAGES),
    "template": TEMPLATE,
    "processor_type": "Glm4vImageProcessor",
}
FAMILY = TinyGlm("Glm4v", PATCH, VISION, TEXT, **OWN)
MOE = TinyGlm("Glm4vMoe", PATCH, VISION, MOE_TEXT, **OWN)
NEWER = TinyGlm("Glm46V", PATCH, VISION, TEXT, **{**OWN, "processor_type": "Glm46VImageProcessor"})
write_checkpoint, Reference = FAMILY.write_checkpoint, FAMILY.reference
