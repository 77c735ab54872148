"""The HTTP server: OpenAI's, Anthropic's and own routes over the one pipeline."""
