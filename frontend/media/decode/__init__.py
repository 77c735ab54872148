"""Processes that make pixels of the files of images and videos, and the order in which requests use them."""
