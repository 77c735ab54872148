"""The way from text to token ids and back, in this process or in one that can be killed."""
