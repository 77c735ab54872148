"""Typed ZeroMQ endpoints and their one codec."""
