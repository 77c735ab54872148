"""One operation per file; a torch reference is the oracle of every faster form. Imports nothing of ours."""
