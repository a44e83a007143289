"""Proofs of training steps through ezkl (docs/proofs.md).

``circuit`` is the language of circuits, ``backend`` runs them through ezkl, ``chain`` verifies them
in a contract.  ``verifier`` and ``prover`` are of one statement; ``steps`` and ``tiles`` say what
is stated of a step, and have a prover and a verifier of a run's.  ``runs`` is the run as both see
it, ``setup`` what both need, ``audit`` the audit, ``batches`` of the data's owner, ``jobs`` for
many machines.
"""
