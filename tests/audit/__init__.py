"""Audits: the sampler, hostile run directories, cheats, reports."""
