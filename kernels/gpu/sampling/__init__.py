"""From logits to tokens on GPUs."""
