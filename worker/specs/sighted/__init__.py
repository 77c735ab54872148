"""Families that read images: config.json to the spec of text and tower, checkpoint tensor to parameter."""
