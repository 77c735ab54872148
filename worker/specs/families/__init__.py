"""Families of dense text models, a file for configs that share a reader: to spec, and tensor to parameter."""
