"""Linear layers on weights in codes, embeddings in codes, and what prepares the inputs of products of our own."""
