"""The one error about an image itself."""


class MediaRefused(Exception):
    """An image that this model or this server does not take: what is wrong with it, and the remedy."""
