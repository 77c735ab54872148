"""What happens: the pure state machine and its parts."""
