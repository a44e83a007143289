"""Write docs/auditing.md from the order of an audit's checks: ``python docs/make_auditing.py``.

What is said of each check is the table by which the audit runs, ``vtrain.audit.order``; a test
compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vtrain.audit.order import MISSING, REPLAY, STRUCTURE, Rule
from vtrain.wire.report import EXIT_CODES

INTRODUCTION: Final = """# Auditing a run

Written by `python docs/make_auditing.py` from the table by which the audit runs.

What an auditor does with a run directory ([format.md](format.md), section 6), in which order, and
with what verdict. Two auditors who are asked the same of the same bytes report the same verdict
and the same checks, each with its status, fault and place, whatever they are written in.
`tests/vectors/audit` has runs, honest and broken, with what must be reported of each.

An auditor is asked: the run's folder; whether a *pin* is held (the digest of a claim, or the
signed claim itself, kept from before the randomness existed), a *solver*'s key, a *task id*; a
sample table of the auditor's own; an SRS file; how many segments to replay, or all; the
randomness of the draw, unless the auditor draws it now.

## Verdicts

A check has a name, a *status* (`passed`, `failed`, `not_done`), a *place* and, where it failed, a
*fault*: what its failure proves.

| fault | what it says |
|---|---|
| `solver` | the solver's signature stands under something false: this is fraud |
| `task` | the task is not legal or contradicts itself: nobody is convicted by it |
| `nobody` | bytes are missing or are not those signed for, which may have happened on the way |

The verdict follows from all checks:

1. *fraud* ({fraud}) if a check failed with the fault `solver`;
2. else *inconclusive* ({inconclusive}) if a check did not pass, be it failed or not done;
3. else *conditional* ({conditional}) if an assumption is not accepted: the segments were drawn
   with randomness that was handed in, and no claim was pinned (`predictable-sample`);
4. else *verified* ({verified}).

In brackets stands the exit code. The check that a verdict *rests on* is the first that failed
with the fault `solver`, else the first with `task`, else with `nobody`, else the first that was
not done. Its name, fault and place are what auditors must agree on; its words are each one's own.

## Before any check

Where `claim.cbor` is not there (not even as a broken link) and `task.cbor` is, the run is
*unfinished*. The report has one check, `claim`, not done, at `claim.cbor`: inconclusive. Nothing
else is looked at.

## The structure

The checks are made in this order, all of them, whatever became of those before; only where
something that a check *needs* was not established is it `not_done`. A condition that does not
hold ends its check, which then has failed with the fault of the condition. What has no fault has
"nobody", and what names no place has the check's own. A report may add, after a colon and a
space, what is meant within a file or a step, as in `log.bin: record 3`: what stands before that is
the place, and must agree. "The auditor takes" speaks of the auditor's own bounds on what it reads;
no verdict about a party rests on them.

Below, c is the task's `checkpoint_every`, and S is the steps claimed, less the remainder of their
division by `commit_every`: the last step with a state root.

"""
FILES: Final = """\
The check `files` goes on after a failure: it lists up to five files that fail, in the order of
the manifest (what it must list and does not comes first), and then one more failure at
`manifest.json` for the rest. So does `checkpoints`, in rising order, with one at `checkpoints`
for the rest; a failure with another fault than "nobody" is listed always. The checkpoints s are
those of steps 0, c, 2c, ... and S; where S is 0 the log commits to no state.

"""
REPLAY_TEXT: Final = """## The replay

It needs the task, a legal graph, the samples, the records of an authentic log and at least one
state that they commit to; without these it is not done. It also does not begin where the auditor
asks for no segment; then there is no check `replay`, and the verdict rests on the structure.

1. **Segments.** There are `n = ceil(S / c)`, counted from 0. Segment i is the steps
   `i * c + 1` to `min((i + 1) * c, S)`. If all are asked for, or n or more, they are all replayed,
   and nothing is drawn. Otherwise the segments are drawn ([format.md](format.md), "Draws"), with
   the digest of the claim and the domain "replay segments", and replayed in rising order.
2. **Start.** The replay of a segment begins at the last checkpoint up to its first step that has
   passed its check, or goes on from where the replay stands if that is later. Where a checkpoint
   is missing the steps before it are done again too. Where there is none at all up to it, that
   segment has a check `replay` of its own, not done, at `steps A to B`, and the next one follows.
3. **Step.** A step is executed by its graph ([operators.md](operators.md)): the states before,
   then every node, give the states after and the record. Fields of the record are compared with
   those of the log in the order below; then, with an SRS, the KZG record.
4. **The first difference ends the whole replay.** Let r be the last step before it whose
   `state_root` was compared and equal, or the one that the replay began after. If r is the step
   before, the place is `step t`; otherwise `steps r+1 to t`: the false step is one of these. A
   `batch_digest` that differs is at `step t`; since the check `batches` has passed over it, it
   convicts nobody.
5. Where every segment chosen was done again, every bit the same, one check `replay` has passed.

The check `kzg` stands before it. It is not done where an SRS was given and is not the task's, or
where there is nothing to replay. A commitment that differs ends the replay too: then `kzg` has
failed, and there is no check `replay`.

"""


def render_rule(rule: Rule, number: int) -> str:
    """One check."""
    lines = [f"### {number}. `{rule.name}`", ""]
    if rule.only:
        lines += [f"Made {rule.only}.", ""]
    if rule.place:
        lines.append(f"- **Place**: `{rule.place}`")
    if rule.needs:
        needs = "; ".join(f"`{fact}` (else: {MISSING[fact]})" for fact in rule.needs)
        lines.append(f"- **Needs**: {needs}")
    if rule.gives:
        lines.append(f"- **Establishes**: {rule.gives}")
    if len(lines) > 2 and lines[-1]:
        lines.append("")
    lines += ["| | what must hold | fault | place |", "|---|---|---|---|"]
    for index, item in enumerate(rule.conditions, start=1):
        lines.append(f"| {index} | {item.holds} | {item.fault} | {item.where} |")
    return "\n".join(lines) + "\n"


def render() -> str:
    """The whole page."""
    head, _, rest = INTRODUCTION.partition("## Verdicts")
    parts = [head + "## Verdicts" + rest.format(**EXIT_CODES)]
    parts += [render_rule(rule, number) + "\n" for number, rule in enumerate(STRUCTURE, start=1)]
    parts += [FILES, REPLAY_TEXT]
    start = len(STRUCTURE) + 1
    parts += [render_rule(rule, number) + "\n" for number, rule in enumerate(REPLAY, start=start)]
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "auditing.md").write_text(render())
