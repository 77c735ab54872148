"""The stateless API servers of the engine: text in, tokens to the scheduler, text out. No torch is imported."""
