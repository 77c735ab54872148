"""Pairs of texts as one prompt, against the library's own encoding of a pair, whole and cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples
from tiny_classifiers import unigram, wordpiece
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from quire.frontend.text.pair_template import PairTemplate

WORDS = Tokenizer(models.WordLevel({f"w{number}": number for number in range(50)}, unk_token="w0"))
TEMPLATES = {
    "bert": processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101)),
    "roberta": processors.RobertaProcessing(("</s>", 102), ("<s>", 101)),
    "llama": processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", special_tokens=[("<s>", 101)]),
    "bytes": processors.ByteLevel(),
    "none": None,
}


@pytest.mark.parametrize("kind", TEMPLATES)
@examples(60)
@given(first=st.integers(0, 12), second=st.integers(0, 12), keep=st.none() | st.integers(5, 20), left=st.booleans())
def test_a_pair_is_what_the_library_makes_of_it(kind, first, second, keep, left):
    tokenizer = Tokenizer.from_str(WORDS.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if TEMPLATES[kind] is not None:
        tokenizer.post_processor = TEMPLATES[kind]
    template = PairTemplate.of(tokenizer)
    texts = [" ".join(f"w{word}" for word in range(start, start + size)) for start, size in ((1, first), (20, second))]
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    made = template.join(*plain, keep, keep_last=left)
    if keep is not None:
        tokenizer.enable_truncation(keep, strategy="longest_first", direction="left" if left else "right")
    wanted = tokenizer.encode(*texts)
    assert list(made.token_ids) == wanted.ids
    types = [int(0 < made.second_text <= at) for at in range(len(wanted.ids))]
    if kind in ("bert", "roberta", "llama"):
        assert types == wanted.type_ids


def test_the_templates_of_real_kinds():
    assert PairTemplate.of(wordpiece()[0]) == PairTemplate((2,), (3,), (3,), 1)
    assert PairTemplate.of(unigram()[0]) == PairTemplate((0,), (2, 2), (2,), None)
