"""Torch's optimizers, schedulers, losses and datasets as parts of a task, and weights back.

Each part says what of it cannot be had as :class:`vtrain.errors.Problem`; ``front`` collects them.
"""
