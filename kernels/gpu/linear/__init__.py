"""Dense linear layers, norms, activations and embeddings on GPUs."""
