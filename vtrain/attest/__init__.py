"""Keys and signatures: who says what about a run."""
