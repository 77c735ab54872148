"""Builds of the kernels of linear layers, norms, activations and embeddings."""
