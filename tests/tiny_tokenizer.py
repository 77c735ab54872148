"""The tokenizers of tiny checkpoints: bytes, special tokens, and merges of a small corpus."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def write_tokenizer(folder, special, template, corpus, vocabulary, **others):
    """tokenizer.json of so many tokens and tokenizer_config.json with a chat template -> the tokenizer. The first of
    the `special` tokens begins and ends texts; `others`: fields of the second file, which may say otherwise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[0],
        "eos_token": special[0],
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        **others,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer
