"""Write docs/auditing.md from the order of an audit's checks: ``python docs/make_auditing.py``.

What is said of each check is in the tables of ``vtrain.audit.order``: the structure check runs by
the names, places and needs there, and vectors hold each condition (tests/audit/test_vectors.py); a
test compares the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vtrain.audit.order import (
    ALGEBRAIC,
    MISSING,
    PROOFS,
    PUBLIC_CHECKS,
    PUBLISHED_NEEDS,
    REPLAY,
    STRUCTURE,
    Rule,
)
from vtrain.wire.report import EXIT_CODES

INTRODUCTION: Final = """# Auditing a run

Written by `python docs/make_auditing.py` from tables of the checks. The structure check of
`vtrain` runs by its table, as far as the order of checks, their places, what they need and what
they establish go. What a condition says, its fault and its own place are words here, and so is all
of the replay, the algebraic check and the proofs: there vectors hold `vtrain` to the page, a case
for each condition of each check (`tests/audit/test_vectors.py` names it, and says of each condition
without one why there is none).

What an auditor does with a run directory ([format.md](format.md), section 6), in which order, and
with what verdict. Two auditors who are asked the same of the same bytes, with the same randomness,
report the same verdict and the same checks, each with its status, fault and place, whatever they
are written in; they may differ only where one meets a bound of its own on what it reads, and in how
much of a piece they read of a store ([publishing.md](publishing.md)), or of a tensor by
[rows](algebraic.md#rows) of it; nobody is convicted by what they differ in.
`tests/vectors/audit` has runs, honest and broken, with what must be reported of each.
A run may also lie [in a store](#runs-in-a-store); in place of a replay there may be an
[algebraic check](#the-algebraic-check), or [proofs](#proofs-of-whole-steps). What follows up to
there is of a folder and a replay. A folder that holds an attested run is audited by
[attested.md](attested.md) alone.

An auditor is asked this, in the words of `vtrain verify` or others:

| argument | type | what | where it is not given |
|---|---|---|---|
| `RUN` | a folder | the run | |
| `--samples` | an integer from 0 | how many segments to replay | 3 |
| `--all` | yes or no | replay all of them; not together with `--samples` | no |
| `--seed` | 1 to 64 bytes | the randomness of the draw | 32 bytes, drawn after reading the claim |
| `--beacon` | `drand:N`, without leading zeros | draw by round N; not with `--seed` | none |
| `--beacon-file` | a file | the bytes of that round; always with `--beacon` | none |
| `--token` | a file | a time stamp of the claim; with `--authority` | its time is not known |
| `--authority` | a file | root certificates that the auditor trusts; with `--token` | none |
| `--chain` | a file | a chain that is neither quicknet nor default | none |
| `--claim` | 32 bytes, or a file | the *pin*: a claim kept from before the draw | none |
| `--solver` | 32 bytes | the key that must have signed | any key |
| `--task-id` | 32 bytes | the task that was agreed on, in full | any, as far as it is claimed |
| `--data` | a file | a sample table of the auditor's own | that of the run |
| `--srs` | a file | the SRS, for KZG commitments | they are not compared |
| `--hiding` | a file | keys that the solver disclosed, with `--srs` | `hiding.key`, where it is |

(A probability in place of `--samples`, as `vtrain` takes it, is its own way to a number.)

The pin is the digest of a claim or the file of a signed claim, which the auditor has held since
before the randomness of the draw existed. `--token` is the response of a time-stamping authority
(RFC 3161).

A question that is not of this form is *bad usage*: there is no report, and the exit code is 2. It
is not of this form where no folder is at RUN, or one with nothing, not even a link, under any of
the names `task.cbor`, `graph.cbor`, `log.bin`, `claim.cbor` and `manifest.json`; or no regular file
at the name given for `--data`, `--srs` or `--hiding`, or, where `--claim` has no 64 hexadecimal
digits of either case (those are always a digest), at that for it; RUN and these files may be
reached by links. Nor is it where `--hiding` is given without `--srs`; `--beacon-file`, `--token`,
`--authority` or `--chain` without `--beacon`; `--beacon` without `--beacon-file` or with `--seed`;
one of `--token` and `--authority` without the other; `--all` with `--samples`; or where an argument
of another mode is given than the one that is asked for. What a file for `--data`,
`--srs` or `--hiding` has in it is no matter of usage, but of the checks. Bad usage, too, is a file
for `--claim` that is not the canonical encoding of a `signed-claim`, or whose signature does not
hold (section 4c). So is one of the run's own: with all links followed, also those of RUN and of its
`claim.cbor`, it lies below RUN, at any depth, or it is the very file that `claim.cbor` is, by a
hard link too. The same holds of the files for `--token` and `--authority`, with `claim.tsr` in the
place of `claim.cbor`: the solver may have had many claims stamped, or be the authority.

**A beacon** ([format.md](format.md), "Draws by a beacon") takes the place of the seed: the
randomness is that of the round, 32 bytes. Each of these is bad usage, and nothing of it convicts
anybody:

1. The files of the round, the chain and the authority are not as that section says (5, "Files"), or
   the round in the file is not the one that `--beacon` names.
2. The rule's chain is neither known nor the one of `--chain`, its key has not signed this round, or
   the round is later than all calendars. (`--chain` may be of a known chain, or of another than the
   rule's: held to its form by 1, it is used where the rule names it, and is not known anyway.)
3. With a token: none of the root certificates serves and is one of the rule's `authorities`, the
   token does not hold for the digest of this claim (whatever its bytes are), or the round is not
   the one that the rule gives.

The rule is the task's `beacon`, or where it has none the one that format.md gives, and no other;
the claim is that of the run. So 2 and 3 are looked at after the structure, before
anything is drawn or replayed, also where no segment is asked for; and where there is no valid claim
or the task is not known (the checks `claim` and `task`), they are not looked at, and nothing is
drawn, since nothing can be replayed.

A draw by a beacon is *predictable* where there is no token, whether or not a claim is pinned. With
a token it is *chosen* where no claim is pinned: a token shows that a claim existed before the
round, not that it was the only one.

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
3. else *conditional* ({conditional}) if an assumption is not accepted. Of segments that were drawn
   there is `predictable-sample` where a seed was handed in and no claim was pinned, or the draw is
   by a beacon and predictable; `chosen-claim` where it is by a beacon and chosen. Both are about
   a draw: where all segments are replayed, nothing was drawn. No argument accepts them;
4. else *verified* ({verified}).

In brackets stands the exit code. The check that a verdict *rests on* is the first that failed
with the fault `solver`, else the first with `task`, else with `nobody`, else the first that was
not done. Auditors must agree on the verdict, on all checks (name, status, fault and place, in
their order), hence on the one that the verdict rests on, and on the steps `replayed`. The words of
a check are each auditor's own, and so is what a report says of its strength; its other fields
repeat the claim and the draw.

## Before any check

Where there is nothing under the name `claim.cbor`, and something under `task.cbor` (be it a broken
link), the run is *unfinished*. The report has the check `claim`, not done, at `claim.cbor`, and,
unless no segment is asked for, the check `replay` (in other modes `algebraic` or `proofs`, at the
empty text), not done: inconclusive. Nothing else is looked at.

## The structure

The checks are made in this order, all of them, whatever became of those before; only where
something that a check *needs* was not established is it `not_done`. A condition that does not
hold ends its check, which then has failed with the fault of the condition. Only `files` and
`checkpoints` go on, as said below their tables.

- **Several things.** Where a check looks at several records, files or checkpoints, it looks at
  them in order, and at all conditions of one before the next. `batches` names the least step.
- **Place.** A condition that names no place has the check's own, and so has a check that passed
  or is not done. The place of `files`, `kzg` and `replay` is the empty text. A report may add,
  after a colon and a space, what is meant within a file or a step, as in `log.bin: record 3`: what
  stands before the first colon and space is the place, and must agree. That is so also where they
  stand in a name: of the node `a: b` the place is `node a`. So the place of condition 3 of
  `complete` is `claim.cbor`, and that of condition 2 is `claim.log_size`.
- **What is established.** A check that failed, or is not done, establishes nothing; only
  `checkpoints` does so for each checkpoint by itself. Two words under "Needs" stand for no check:
  `kzg_root` is established where `claim` is, and the claim has one; `segments` where `records` is,
  and S is above 0.
- **"The auditor takes"** speaks of the auditor's own bounds on what it reads; no verdict about a
  party rests on them.

Below, c is the task's `checkpoint_every`, and S is the steps claimed, less the remainder of their
division by `commit_every`: the last step with a state root. S may be above the task's `steps`,
where `complete` failed: the checks after it go by the claim all the same.

"""
STORE_TEXT: Final = """## Runs in a store

RUN is the URL of a store ([publishing.md](publishing.md)), which may be empty: there is no bad
usage about what lies in it, and no run is unfinished. The path of a folder is never a store: one
that has folders (or links to some) named `chunks` and `states`, and nothing under `manifest.json`
and `checkpoints`, is bad usage. So is `--mode proof` of a store, of circuits of any kind: no proof
is published. A file for `--claim`, `--token`, `--authority` or `--trace-claim` is the run's own,
and bad usage, by the words above with the folder that a `file://` URL names in the place of RUN; of
any other store no file is. The checks are the same, with these differences:

- Condition 4 of `claim` goes by the first case of "A kept claim" alone: while it is made no log is
  asked for, so the other two prove nothing.
- `manifest`, `index`, `files` and `model` are not made. `samples`, `batches` and `checkpoints` are
  made as said in [publishing.md](publishing.md#the-checks-of-a-published-run); with `--data`
  `samples` and `batches` are made as of a folder.
- `kzg` (with `--srs`) is made with what was asked for: its rule 1 needs, of samples, that `samples`
  has not failed, be it made or not. The initial state is looked at where segment 0 is replayed and
  its state has passed `checkpoints`, and nowhere else: with `--samples 0` there is so no check
  `kzg`, but for what rule 1 says is not done. `hiding.key` is not asked for: without `--hiding` no
  key is known but that of the initial state.
{needs}
- A place in the store is an object's name, without the store's address: `task.cbor`,
  `chunks/HEX`. What an object is asked for by is the place of the check, the object what may follow
  after a colon and a space, as in `checkpoints/000000000004.safetensors: states/HEX`.

"""
ALGEBRAIC_TEXT: Final = """## The algebraic check

With `--mode algebraic` the structure is followed by these checks, in place of `kzg` and `replay`;
[algebraic.md](algebraic.md) has the terms. The auditor is asked this besides (`--samples` is then
the number of intervals, 1 where it is not given and no step is named; `--all` and `--srs` are bad
usage, and so is `--samples 0`):

| argument | type | what | where it is not given |
|---|---|---|---|
| `--steps` | as 3,7,20-24 | their intervals; not with `--samples`, `--seed`, `--beacon` | some |
| `--traces` | a folder | where the traces are, also of a run in a store | `traces` of the run |
| `--trace-claim` | 32 bytes, or a file | the pin of what was signed of traces | none |
| `--challenge` | 1 to 64 bytes | the randomness of the vectors | 32 bytes, drawn late |
| `--derived` | yes or no | two vectors that follow from what was signed | no |
| `--rows` | an integer from 1 | [rows](algebraic.md#rows) to draw; not with `--derived` | none |
| `--rows-above` | an integer from 1 | bytes above which they are; with `--rows` alone | 2^26 |

"Late" is after what was signed was read, and the pin is kept from before `--challenge` existed,
which does not go together with `--derived`. Places in the folder of `--traces` are given as those
in `traces` of the run. What `--rows` changes has [algebraic.md](algebraic.md#rows).
Bad usage, too, is a name for `--traces` at which there is no folder (links are followed), and a
file for `--trace-claim` that is no canonical `signed-tensor-traces`, or is the run's own: it lies
below RUN or the folder of traces, or is the very file that its `traces.cbor` is. Who signed it
conditions 3 and 4 of `trace` ask.

1. Where the task, the legal graph, the samples or the records are not established, or the log has
   no record, there is one check, `algebraic`, not done; its place is the empty text.
2. Else S is known: a step of `--steps` that is not one of 1 to S, also where S is 0, is bad usage.
   Else, where S is 0, there is one check, `trace`, not done; its place is the empty text.
3. Else there is one check `trace`, of all intervals chosen, and, if it has passed, one check
   `algebraic` of all of them: not one for each interval. The first condition that does not hold
   ends both. They are looked at interval by interval, in rising order: in `trace` conditions 7 to
   9, in `algebraic` all.
4. The report's `replayed` has the intervals of which every value was found right, as first and last
   step, in order.

Below, A to B are the steps of an interval. *The interval*, as a place, is `step B` where A is B,
else `steps A to B`; what is owed may follow after a colon and a space. The place of a check that
has passed is the empty text. An *element*, as a place, is `step T, node I, chunk C, element E`: the
node's index from 0, in row-major order the flat index of the element within the tensor, and the
1024 bytes of the tensor that it begins in, from 0. It is

- where digests are compared: the first element that the bytes signed for have otherwise than the
  right ones; where these bytes are not there, the place is `step T, node I` alone, and the solver
  is convicted all the same;
- where the leaves of the first states do not give the root: the first `state` node, in the order of
  nodes, of which the checkpoint has another digest, and its first element as above;
- of a `state` out of its range: the first element that is;
- of a product: in the first matrix with a row that has an element out of range or does not pass for
  a vector, in the first such row, the first element that is not the exact one.

*There*, here and in conditions 2 and 7 of `algebraic`, are bytes in `chunks/HEX` of the folder of
`--traces`, where that is given, of whatever run; else in that of the run's `traces`, or of a run in
a store in its pieces. They are just as many as the node's type has, and have the digest. Others are
as good as none, also bytes of another length that have it; and nothing is looked for elsewhere, in
a checkpoint, in the log, or in the store beside `--traces`.

The verdict is conditional where intervals were drawn and not all are looked at, as with segments
that were drawn (`predictable-sample`, `chosen-claim`); where steps were named without a pinned
claim and these are not all intervals; and where `--challenge` is given without `--trace-claim`
(both `predictable-sample`).

"""
PROOFS_TEXT: Final = """## Proofs of whole steps

With `--mode proof` the structure is followed by these checks, in place of `kzg` and `replay`, where
the task's circuits are of whole steps; of tiles [tiling.md](tiling.md), section 7, has the check
`tiles` in place of `proof`, after `srs` and `owner`. [proofs.md](proofs.md) has the parties.

With `--private` the checks of the structure that are listed are these, and of the others those that
failed with the fault `solver` or `task`:
{public}.

The auditor is asked this besides (`--samples` is then the number of steps, 1 where it is not given;
`--hiding` keeps its meaning):

| argument | type | what | where it is not given |
|---|---|---|---|
| `--srs` | a file | the SRS | bad usage |
| `--private` | yes or no | by public files alone | no |
| `--steps` | steps: 3,7,20-24 | look at these | some are drawn |
| `--batches` | a file | a `signed-batches`; always with `--owner` | none |
| `--owner` | 32 bytes | the key of the data's owner | none |
| `--allow-insecure-srs` | yes or no | accept an SRS of no known ceremony | no |

Bad usage, too, are `--all`, `--samples 0`, `--steps` together with `--samples`, `--seed` or
`--beacon`, a file for `--srs` that has not the length of an SRS ([format.md](format.md), section
4a), one for `--batches` that is not the canonical encoding of a `signed-batches`; and, as far as
steps are looked at, one of `--steps` that cannot be proven.

Steps that can be proven are the multiples of `every` up to `log_size` (of a task without KZG
commitments all); they are drawn by the domain "proof steps" ([format.md](format.md), "Draws"), or
named. They are looked at in rising order, each once, each with a check of its own: `proof`, or what
stands in its place. Of a step that fails the place is `step t`; what is meant may follow after a
colon and a space. The conditions of `replay` and `kzg` come between 7 and 8 of `proof`.

There is one check `proof`, not done, after `srs`, `owner` and `sample`, and no step is looked at,
where one of these is so, of which the first counts: `--private` is given and the task logs no KZG
commitments (place `task.commitments`); the SRS file is too small for the task's k (place: the
file); there is no step to be proven (place: the empty text). A log
without any record is one of the things missing in `proofs`. The place of `proofs`, `sample`, and of
`srs` and `owner` that passed, is the empty text.

The report's `replayed` has each step of which `proof` has passed. The verdict is conditional where
steps were drawn by a seed, or named, without a pinned claim, and not all are looked at; and where
the SRS is of no known ceremony and the auditor did not accept that (`--allow-insecure-srs`).

"""
NOTES: Final = {
    "claim": """\
**A kept claim.** K and C *contradict each other* if they have one `solver`, one `task_id` and one
`run_id`, and one of these is so:

1. They have one `log_size`.
2. C has the larger `log_size`, `log.bin` is the log that C signs (the three conditions of the
   check `log`), and the root over its first `log_size` of K records is not the `log_root` of K.
3. C has the larger `log_size`, `log.bin` is the log that C signs, and K or C has a `kzg_root`;
   `task.cbor` is the task of C and logs KZG commitments, every `every` steps; `kzg.bin` is the log
   that C signs (the three conditions of the check `kzg_log`), so that C has a `kzg_root`; and the
   root over its first floor(`log_size` of K / `every`) records is not the `kzg_root` of K, be it
   that K has none.

Logs and task are read for this here, whatever becomes of their own checks later. Where one of
them is missing or another, nothing is proven: condition 4 holds, and condition 5 does not.
""",
    "complete": """\
Fewer steps than the task has are no fault where no task id is asked for.
""",
    "files": """\
The check goes on after a failure. First come the files that condition 1 misses, in rising order
of their names, then the files that the manifest lists, in its order, each with its first condition
of 2, 3 and 4 that does not hold. The first five failures are listed, each as a failed check
`files`; where there are more, one more failure at `manifest.json` follows for the rest.

- "One of these" in condition 2 are the files of condition 1: `kzg.bin` only where the task is
  known and logs KZG commitments.
- A checkpoint's name is `checkpoints/`, twelve digits (or thirteen, of which the first is not 0)
  and `.safetensors`. It is looked at whatever its step is.
- Passed over, without a look at any condition more, are a checkpoint where there is no legal
  graph, the sample table where the task is not known, and the run's sample table where the auditor
  brings one.
""",
    "samples": """\
A sample table that the auditor brings takes the place of the run's; the check's place is then the
name by which the auditor gave it.
""",
    "checkpoints": """\
The checkpoints s are those of steps 0, c, 2c, ... and S, in rising order; where S is 0 the log
commits to no state. The check goes on after a failure. Every checkpoint that fails counts, with
whatever fault. The first five are listed, and of the others the first five alone that have another
fault than "nobody"; where more than five failed, one more failure, with the fault "nobody" at
`checkpoints`, follows after the last, also where all of them are listed.
""",
}
"""What is said below the table of a check."""
REPLAY_TEXT: Final = """## The replay

It needs `task`, `legal`, `samples`, `records` and `segments`; without these it is not done. It
also does not begin where the auditor asks for no segment; then there is no check `replay`, and the
verdict rests on the structure.

1. **Segments.** There are `n = ceil(S / c)`, counted from 0. Segment i is the steps `i * c + 1` to
   `min((i + 1) * c, S)`. If all are asked for, or n or more, they are all replayed, and nothing is
   drawn. Otherwise the segments are drawn ([format.md](format.md), "Draws"), with the digest of
   the claim and the domain "replay segments", and replayed in rising order.
2. **Start.** The replay of a segment begins at the last checkpoint of a step before its first that
   has passed its check, or goes on from where the replay stands if that is as late or later. Where
   a checkpoint is missing the steps before it are done again too. Where there is nothing to begin
   with, that segment has a check `replay` of its own, not done, at `steps A to B`, with the
   segment's first step A and last step B, be they one; and the next one follows.
3. **Step.** A step is executed by its graph ([operators.md](operators.md)): the states before,
   then every node, give the states after and the record. Fields of the record are compared with
   those of the log in the order below; then, with an SRS, the KZG record.
4. **The first difference ends the whole replay.** Let r be the last step before it whose
   `state_root` was compared and equal, or the one that the replay of this segment began after,
   whichever is later. If r is the step before, or t itself (of a KZG record), the place is
   `step t`; else the false step is one of several, and the place is `steps r+1 to t`. A
   `batch_digest` that differs is at `step t`, and convicts nobody here: the check `batches` has
   looked at every record, and convicts by itself.
5. Where every segment chosen was done again, every bit the same, one check `replay` has passed.

The report's `replayed` has an entry for each segment that was begun, in order: from the first step
that was done for it, which is before the segment where its checkpoint is missing, to its last
step, or to the one in which the difference was found.

The check `kzg` follows on the structure, before `replay`. Where it is made, it ends as the first
of these that is so:

1. It is *not done* where a replay lacks something that it needs (above), where the KZG records are
   not established, where the SRS file is not the one that the task names, or serves nobody
   ([format.md](format.md), section 4a), and where the file of secrets is none: the one that the
   auditor gave, else hiding.key where anything is in the run under that name; what is no regular
   file is none. An auditor without either knows no key but that of the initial state.
2. It has *failed* where the initial state has other commitments, or another key. No record is
   compared then, and the replay goes on without.
3. It has *failed* where a commitment in a record differs. That ends the replay, as any first
   difference does; the check stands in the place of `replay`, after what was said of segments
   before. Parts that were not compared before do not count then.
4. It is *not done* where a part of a record was not compared, since its key is not known or has
   another id than the record says. Its place is that of the first such part.
5. It has *passed* where at least one record was compared.
6. Otherwise there is no check `kzg`.

The initial state is looked at also where no segment is asked for.

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
        word = f"`{rule.fact}`, " if rule.fact else ""
        lines.append(f"- **Establishes**: {word}{rule.gives}")
    if not rule.conditions:
        return "\n".join(lines).rstrip("\n") + "\n"
    if len(lines) > 2 and lines[-1]:
        lines.append("")
    lines += ["| | what must hold | fault | place |", "|---|---|---|---|"]
    for index, item in enumerate(rule.conditions, start=1):
        lines.append(f"| {index} | {item.holds} | {item.fault} | {item.where} |")
    note = f"\n{NOTES[rule.name]}" if rule.name in NOTES else ""
    return "\n".join(lines) + f"\n{note}"


def render() -> str:
    """The whole page."""
    head, _, rest = INTRODUCTION.partition("## Verdicts")
    parts = [head + "## Verdicts" + rest.format(**EXIT_CODES)]
    parts += [render_rule(rule, number) + "\n" for number, rule in enumerate(STRUCTURE, start=1)]
    parts.append(REPLAY_TEXT)
    start = len(STRUCTURE) + 1
    parts += [render_rule(rule, number) + "\n" for number, rule in enumerate(REPLAY, start=start)]
    needs = "\n".join(
        f"- `{name}` needs `{fact}` too (else: {MISSING[fact]}): it is not asked for without."
        for name, facts in PUBLISHED_NEEDS.items()
        for fact in facts
    )
    parts.append(STORE_TEXT.format(needs=needs))
    for text, rules in ((ALGEBRAIC_TEXT, ALGEBRAIC), (PROOFS_TEXT, PROOFS)):
        start += len(REPLAY) if rules is ALGEBRAIC else len(ALGEBRAIC)
        public = ", ".join(f"`{rule.name}`" for rule in STRUCTURE if rule.name in PUBLIC_CHECKS)
        parts.append(text.format(public=public))
        parts += [render_rule(rule, number) + "\n" for number, rule in enumerate(rules, start)]
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "auditing.md").write_text(render())
