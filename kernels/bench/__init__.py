"""Every operation against the limits of its device and against torch: the measured half of `quire bench kernels`."""
