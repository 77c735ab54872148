"""Vision towers: from the pixels of images to rows that a decoder reads."""
