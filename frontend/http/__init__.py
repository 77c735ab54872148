"""The HTTP door: OpenAI-compatible routes over the one pipeline."""
