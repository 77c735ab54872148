"""Clients that load an engine, and what they note."""
