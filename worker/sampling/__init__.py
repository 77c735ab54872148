"""Sampling and pooling: hidden states become tokens, logprobs or vectors."""
