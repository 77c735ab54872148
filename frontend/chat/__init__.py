"""Chats: checked, and rendered by the model's template in a process that can be killed."""
