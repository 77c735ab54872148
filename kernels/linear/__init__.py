"""Linear layers, norms, activations and embeddings: reference forms."""
