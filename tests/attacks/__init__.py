"""Attacks on the auditor and the solver: each test says what must not happen."""
