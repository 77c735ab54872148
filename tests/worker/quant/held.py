"""A source of weights that are there, for layers alone."""


class Held:
    """A source of tensors that are there: {part: {name: tensor}}."""

    origin = "memory"

    def __init__(self, parts):
        self._tensors = {f"{part}.{name}": one for part, tensors in parts.items() for name, one in tensors.items()}

    def names(self):
        return tuple(self._tensors)

    def shape(self, name):
        return tuple(self._tensors[name].shape)

    def dtype(self, name):
        return self._tensors[name].dtype

    def read(self, name, region):
        return self._tensors[name][region]
