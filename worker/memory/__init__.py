"""The KV cache and how large it may be."""
