"""Dishonest solvers, so that people and tests can see them caught."""
