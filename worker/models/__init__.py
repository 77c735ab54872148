"""Model definitions: a frozen spec and the decoder it drives."""
