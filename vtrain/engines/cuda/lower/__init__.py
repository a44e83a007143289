"""Launches of kernels, one file a family of operators, as in ``vtrain.ops``."""
