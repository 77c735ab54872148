"""The command line: its flags, and those of vLLM."""
