"""Chats: their checks, and their rendering by the model's template in a process that can be killed."""
