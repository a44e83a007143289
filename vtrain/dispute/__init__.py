"""Disputes: two claims about one run, narrowed to one block of one operator and judged."""
