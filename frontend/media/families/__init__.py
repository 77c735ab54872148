"""The families of models that take images: size and number of tokens of each image, one file a family."""
