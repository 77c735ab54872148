"""The supported architectures, as data: how each config reads, and how its checkpoint names its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from quire.worker.fields import Config
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.families import bert, cohere, gemma, gemma3n, gemma4, llama, llama_kin, olmo, phi
from quire.worker.specs.head_spec import HeadShape
from quire.worker.specs.routed import biased, experts, gpt_oss, llama4
from quire.worker.specs.sighted import (
    gemma3,
    gemma4_images,
    glm4v,
    idefics3,
    internvl,
    llava_next,
    llava_onevision,
    mistral3,
    paligemma,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
)
from quire.worker.specs.spec import ModelSpec
from quire.worker.weights.names import NameMap


@dataclass(frozen=True, slots=True)
class Architecture:
    read: Callable[[Config, Config], ModelSpec | EncoderSpec]
    """(config.json, generation_config.json or empty) -> spec; ModelError for what cannot be served."""
    names: NameMap
    tower: str = ""
    """Pattern of tensors that only who reads images needs; empty: all are needed."""
    head: str = ""
    """Pattern of a head which, where it is stored, is not tied, whatever config.json says; empty: config.json says."""
    predictors: int = 0
    """Layers behind the last that a checkpoint may hold, to predict more tokens at once: they are not read."""
    text_alone: bool = False
    """It has a tower that is not read: it is served where that is asked for."""
    classifier: HeadShape | None = None
    """Shape of its head for labels; None: it has none."""


GENERATORS: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Ends of the names of architectures with an output head."""
_STATED: Final[dict[str, Architecture]] = {
    "LlamaForCausalLM": Architecture(llama.read_llama, llama.NAMES),
    "MistralForCausalLM": Architecture(llama.read_mistral, llama.NAMES),
    "Ministral3ForCausalLM": Architecture(llama.read_ministral3, llama.NAMES),
    "Qwen2ForCausalLM": Architecture(llama.read_qwen2, llama.NAMES),
    "Qwen3ForCausalLM": Architecture(llama.read_qwen3, llama.NAMES),
    "GemmaForCausalLM": Architecture(gemma.read_gemma, llama.NAMES),
    "Gemma2ForCausalLM": Architecture(gemma.read_gemma2, gemma.NAMES),
    "Gemma3ForCausalLM": Architecture(gemma.read_gemma3, gemma.NAMES),
    "Gemma3ForConditionalGeneration": Architecture(gemma3.read_gemma3_with_images, gemma3.NAMES, gemma.TOWER_TENSORS),
    **{name: Architecture(read, gemma4.NAMES) for name, read in gemma4.READERS.items()},
    **{
        name: Architecture(read, gemma4_images.NAMES, gemma4_images.TOWER_TENSORS)
        for name, read in gemma4_images.READERS.items()
    },
    "Gemma3nForCausalLM": Architecture(gemma3n.read_gemma3n, gemma3n.NAMES),
    "Gemma3nForConditionalGeneration": Architecture(gemma3n.read_wrapped, *gemma3n.WRAPPED, text_alone=True),
    "Phi3ForCausalLM": Architecture(phi.read_phi3, phi.NAMES),
    "Glm4ForCausalLM": Architecture(phi.read_glm4, phi.GLM4_NAMES),
    "Olmo2ForCausalLM": Architecture(olmo.read_olmo2, olmo.NAMES),
    "Olmo3ForCausalLM": Architecture(olmo.read_olmo3, olmo.NAMES),
    "Exaone4ForCausalLM": Architecture(olmo.read_exaone4, olmo.NAMES),
    "CohereForCausalLM": Architecture(cohere.read_cohere, cohere.NAMES),
    "Cohere2ForCausalLM": Architecture(cohere.read_cohere2, cohere.NAMES),
    "SmolLM3ForCausalLM": Architecture(llama_kin.read_smollm3, llama.NAMES),
    "GraniteForCausalLM": Architecture(llama_kin.read_granite, llama.NAMES),
    "SeedOssForCausalLM": Architecture(llama_kin.read_seed_oss, llama.NAMES),
    "Ernie4_5ForCausalLM": Architecture(llama_kin.read_ernie4_5, llama.NAMES),
    "MixtralForCausalLM": Architecture(experts.read_mixtral, experts.MIXTRAL_NAMES),
    "Qwen2MoeForCausalLM": Architecture(experts.read_qwen2_moe, experts.NAMES),
    "Qwen3MoeForCausalLM": Architecture(experts.read_qwen3_moe, experts.NAMES),
    "OlmoeForCausalLM": Architecture(experts.read_olmoe, experts.NAMES),
    "Glm4MoeForCausalLM": Architecture(biased.read_glm4_moe, biased.NAMES, predictors=1),
    "MiniMaxM2ForCausalLM": Architecture(biased.read_minimax_m2, biased.MINIMAX_NAMES, predictors=3),
    "Ernie4_5_MoeForCausalLM": Architecture(biased.read_ernie4_5_moe, biased.ERNIE_NAMES),
    "Dots1ForCausalLM": Architecture(biased.read_dots1, biased.NAMES),
    "Llama4ForCausalLM": Architecture(llama4.read_llama4, llama4.NAMES),
    "Llama4ForConditionalGeneration": Architecture(llama4.read_whole, llama4.NAMES, llama4.TOWER, text_alone=True),
    "GptOssForCausalLM": Architecture(gpt_oss.read_gpt_oss, gpt_oss.NAMES),
    "Qwen2VLForConditionalGeneration": Architecture(qwen2_vl.read_qwen2_vl, qwen2_vl.NAMES, qwen2_vl.TOWER_TENSORS),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        qwen2_5_vl.read_qwen2_5_vl, qwen2_5_vl.NAMES, qwen2_vl.TOWER_TENSORS
    ),
    "Qwen3VLForConditionalGeneration": Architecture(qwen3_vl.read_qwen3_vl, qwen3_vl.NAMES, qwen3_vl.TOWER_TENSORS),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        qwen3_vl.read_qwen3_vl_moe, qwen3_vl.MOE_NAMES, qwen3_vl.TOWER_TENSORS
    ),
    "Glm4vForConditionalGeneration": Architecture(glm4v.read_glm4v, glm4v.NAMES, glm4v.TOWER_TENSORS),
    "Glm4vMoeForConditionalGeneration": Architecture(glm4v.read_glm4v_moe, glm4v.MOE_NAMES, glm4v.TOWER_TENSORS),
    "Glm46VForConditionalGeneration": Architecture(glm4v.read_glm46v, glm4v.EITHER_NAMES, glm4v.TOWER_TENSORS),
    "InternVLForConditionalGeneration": Architecture(
        internvl.read_internvl, internvl.NAMES, internvl.TOWER_TENSORS, internvl.HEAD
    ),
    "LlavaOnevisionForConditionalGeneration": Architecture(
        llava_onevision.read_llava_onevision, llava_onevision.NAMES, llava_onevision.TOWER_TENSORS
    ),
    **{
        f"{name}ForConditionalGeneration": Architecture(idefics3.read_idefics3, idefics3.NAMES, idefics3.TOWER_TENSORS)
        for name in ("Idefics3", "SmolVLM")
    },
    "LlavaNextForConditionalGeneration": Architecture(
        llava_next.read_llava_next, llava_next.NAMES, llava_next.TOWER_TENSORS, llava_next.HEAD
    ),
    "Mistral3ForConditionalGeneration": Architecture(
        mistral3.read_mistral3, mistral3.NAMES, mistral3.TOWER_TENSORS, mistral3.HEAD
    ),
    "LlavaForConditionalGeneration": Architecture(
        llava_next.read_llava, llava_next.LLAVA_NAMES, llava_next.TOWER_TENSORS, llava_next.HEAD
    ),
    "PaliGemmaForConditionalGeneration": Architecture(paligemma.read_paligemma, paligemma.NAMES, gemma.TOWER_TENSORS),
    "BertModel": Architecture(bert.read_bert, bert.NAMES),
    "BertForMaskedLM": Architecture(bert.read_bert, bert.NAMES),
    "RobertaModel": Architecture(bert.read_roberta, bert.NAMES),
    "RobertaForMaskedLM": Architecture(bert.read_roberta, bert.NAMES),
    "XLMRobertaModel": Architecture(bert.read_roberta, bert.NAMES),
    "XLMRobertaForMaskedLM": Architecture(bert.read_roberta, bert.NAMES),
    "BertForSequenceClassification": Architecture(bert.read_bert, bert.CLASSIFIER_NAMES, classifier=bert.CLASSIFIER),
    "RobertaForSequenceClassification": Architecture(
        bert.read_roberta, bert.ROBERTA_CLASSIFIER_NAMES, classifier=bert.ROBERTA_CLASSIFIER
    ),
    "XLMRobertaForSequenceClassification": Architecture(
        bert.read_roberta, bert.ROBERTA_CLASSIFIER_NAMES, classifier=bert.ROBERTA_CLASSIFIER
    ),
    "BertForTokenClassification": Architecture(
        bert.read_bert, bert.TOKEN_CLASSIFIER_NAMES, classifier=bert.TOKEN_CLASSIFIER
    ),
    "RobertaForTokenClassification": Architecture(
        bert.read_roberta, bert.TOKEN_CLASSIFIER_NAMES, classifier=bert.TOKEN_CLASSIFIER
    ),
    "XLMRobertaForTokenClassification": Architecture(
        bert.read_roberta, bert.TOKEN_CLASSIFIER_NAMES, classifier=bert.TOKEN_CLASSIFIER
    ),
}
LABELLED: Final = {
    **{
        name: name
        for name in ("Llama", "Mistral", "Ministral3", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "Glm4", "SmolLM3")
    },
    **{name: name for name in ("Exaone4", "SeedOss", "Olmo2", "Olmo3", "Mixtral", "Qwen2Moe", "Qwen3Moe")},
    "Gemma3Text": "Gemma3",
}
"""Decoders that transformers has with a head of labels, and without any -> the names of those that generate."""
_HEADED: Final = {
    f"{name}ForSequenceClassification": replace(_STATED[f"{row}ForCausalLM"], classifier=llama.CLASSIFIER)
    for name, row in LABELLED.items()
}
TOKEN_LABELLED: Final = tuple(name for name in LABELLED if name not in ("Olmo2", "Olmo3", "Gemma3Text"))
"""Those of them that transformers has with a head that labels each token."""
_TOKEN_HEADED: Final = {
    f"{name}ForTokenClassification": replace(_STATED[f"{LABELLED[name]}ForCausalLM"], classifier=llama.TOKEN_CLASSIFIER)
    for name in TOKEN_LABELLED
}
_BARE: Final = {f"{name}Model": _STATED[f"{row}ForCausalLM"] for name, row in LABELLED.items()}
ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(_STATED | _BARE | _HEADED | _TOKEN_HEADED)

_OWN_CODE: Final = "is code of its own, which is never run"
_REWARD: Final = (
    "and in no library that its rewards could be held against; use a …ForSequenceClassification or "
    "…ForTokenClassification with --task reward"
)
_ENCODER: Final = "use an encoder that is a BERT, RoBERTa or XLM-RoBERTa, such as bge-m3"
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{f"{name}ForRewardModel": f"{_OWN_CODE}, {_REWARD}" for name in ("Qwen2", "InternLM2")},
        "Qwen2ForProcessRewardModel": f"{_OWN_CODE}, {_REWARD}",
        **{
            f"New{what}": f"(gte-multilingual) {_OWN_CODE}; {_ENCODER}"
            for what in ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")
        },
        "Lfm2VlForConditionalGeneration": "(LFM2-VL) has convolutions between its layers of attention, whose state no "
        "KV cache holds; use a SmolVLM, Qwen3-VL or InternVL of its size",
        **{f"JinaBert{what}": f"(jina-embeddings-v2) {_OWN_CODE}; {_ENCODER}" for what in ("Model", "ForMaskedLM")},
        "XLMRobertaLoRA": f"(jina-embeddings-v3) {_OWN_CODE}; {_ENCODER}",
        "ModernBertForMaskedLM": "fills masks, which nothing here does; use a checkpoint of ModernBertModel, such as "
        "gte-modernbert-base, which has no weights of such a head",
        "BgeM3EmbeddingModel": "makes sparse and ColBERT vectors, which are not served; leave it out for dense ones",
    }
)
"""Architectures that people ask for and nothing here runs -> why not, and what to use."""
