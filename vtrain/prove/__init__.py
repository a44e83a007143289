"""Proofs of training steps through ezkl (docs/proofs.md).

``circuit`` is the language of circuits, ``steps`` and ``tiles`` say what is stated of a step,
``backend`` runs it through ezkl, ``chain`` verifies it in a contract.  Here: ``verifier`` and
``prover`` of one statement, ``runs`` and ``audit`` of those of a run, ``batches`` of the data's
owner, ``jobs`` for many machines.
"""
