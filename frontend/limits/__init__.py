"""Limits of what one request may take from all others: bytes, threads, descriptors, depth."""
