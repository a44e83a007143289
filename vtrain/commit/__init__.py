"""Commitments: tensor digests, state roots, the run log and openings; all hashing in Rust."""
