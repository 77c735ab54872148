"""Models that read images, whose text alone is a family that stands elsewhere."""
