"""Rows with a grammar."""

from quire.worker.device.device import Device

WIDTH = 300
"""Of the logits: some more than the tokenizer has tokens."""
END = 0
PROMPT = [40, 41, 42]
CPU = Device("cpu", 0)


def pre_tokenizers_bytes():
    """Byte -> the character that stands for it in a byte-level vocabulary (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}
