"""The pure state machine that changes the state: events in, instructions out."""
