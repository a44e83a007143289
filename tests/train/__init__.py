"""Data, checkpoints, runs that are killed, and delivery."""
