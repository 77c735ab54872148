"""Code generated from quire.proto by make proto."""
