"""Stateless door of the engine: text in, tokens to the scheduler, text out. Imports proto only, and no torch."""
