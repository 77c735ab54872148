"""Builds of the kernels of dense linear layers, norms, activations and embeddings."""
