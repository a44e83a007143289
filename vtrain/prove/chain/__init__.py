"""Proofs verified by contracts of Ethereum."""
