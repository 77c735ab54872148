"""Answers to questions about the scheduler; read only."""
