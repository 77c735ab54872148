"""Media: items of prompts become rows of encoder memory, which take the places of their tokens' embeddings."""
