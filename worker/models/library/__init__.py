"""Models that run as modules of the transformers library, with layers, cache and weights of ours."""
