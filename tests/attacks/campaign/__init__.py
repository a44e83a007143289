"""A campaign against the auditor: seeded attacks by the thousand, each with a verdict that is known
beforehand.

``python -m tests.attacks.campaign --mutants 1000 --hostile 300 --starved 200 --grind 50 --seed 1``

``mutate`` makes false (and harmless) runs, ``hostile`` files and folders that no honest hand made,
``starve`` takes memory, descriptors, disk and time away, ``grind`` moves a draw off a false step.
``watch`` runs what is attacked in a process of its own and ``judge`` says what is wrong with how it
ended.  ``fakes`` are bad auditors: they show that the judge can find something.
"""
