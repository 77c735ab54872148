"""From logits to tokens: reference forms."""
