"""The contract: what clients and the three kinds of process say to each other. Imports nothing of ours and no torch."""
