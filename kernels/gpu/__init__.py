"""Triton forms of the operations; imported only where they run, so that triton is needed only where CUDA is."""
