"""Answers that are vectors or made of them: embeddings, scores, numbers of labels."""
