"""What can be asked of the scheduler; read only."""
