"""Tensor-parallel layers. Each declares its shard; none imports a model."""
