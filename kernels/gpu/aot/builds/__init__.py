"""The builds of every shipped kernel, in rooms and modules named like those of the kernels."""
