"""How the embedded model was made."""
