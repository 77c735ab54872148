"""Matrices of all experts of a layer in one tensor: what config.json states, headers, codes and scales."""
