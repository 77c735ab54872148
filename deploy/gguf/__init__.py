"""A GGUF file as a model's directory: config.json, tokenizer and chat template made of its metadata."""
