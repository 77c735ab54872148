"""Processes that make pixels of image files, and the order in which requests use them."""
