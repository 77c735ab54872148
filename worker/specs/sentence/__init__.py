"""The files of sentence-transformers beside a model: its pooling, what follows it, its longest text, its activation.

`modules.json` lists the stages, each with a folder for its config.json and weights; `config_sentence_transformers.json`
and `sentence_bert_config.json` hold settings of all of them. Code that a checkpoint brings is never run.
"""
