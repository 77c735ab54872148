"""Linear layers on weights in codes: products of our own, made for few tokens, and what prepares their inputs."""
