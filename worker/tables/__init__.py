"""State of every slot on the host and on the device."""
