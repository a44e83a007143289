"""Engines run a step graph, bit for bit as the law says: numpy (the law itself), cpu and cuda."""
