"""Videos of the families: which frames are read, at which size, and what stands for them in a prompt."""
