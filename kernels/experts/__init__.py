"""Layers of experts: the choice of experts for each token, and their feed-forward blocks."""
