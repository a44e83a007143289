"""What runs a circuit: ezkl in a process of its own, its settings, keys and SRS."""
