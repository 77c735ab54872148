"""Names by which commands for vLLM start a server."""
