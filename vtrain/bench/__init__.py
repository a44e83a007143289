"""What a task costs on a machine: measured, and estimated before a run.

``stages`` measures one by one what can be done with a task: training it, committing, replaying,
checking a trace, a dispute, a proof.  ``bench`` repeats that over seeds and over models of other
sizes (``sweep``), ``figures`` and ``plots`` are how it is handed on, ``estimate`` says beforehand
what comes out.
"""
