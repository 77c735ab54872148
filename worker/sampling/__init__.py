"""From hidden states to tokens, logprobs or vectors."""
