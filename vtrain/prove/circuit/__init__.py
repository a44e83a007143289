"""The language of circuits: see ``vtrain.prove.circuit.builder``."""
