"""One process per device: owns weights, KV pages, slots and sampling. Imports proto and kernels."""
