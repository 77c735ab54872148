"""Linear layers, norms, activations and embeddings on GPUs."""
