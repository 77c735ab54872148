"""GGUF files: headers checked before anything is read, tensors under the names of safetensors checkpoints."""
