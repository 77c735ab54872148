"""The families of models that take images and videos: items, sizes and tokens of each, one file a family."""
