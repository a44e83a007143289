"""Checking a run that somebody else made: sampling plan, structure, replay, and the verdict."""
