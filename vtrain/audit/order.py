"""What an audit checks, in order, as data: docs/auditing.md is written from it.

The structure check runs by ``STRUCTURE``: the order of its checks, their places, what each needs
and what it establishes (``vtrain.audit.structure``).  Conditions, and the tables of what follows on
the structure, are words for the page: the code that makes these checks is held to them by vectors,
a case for each condition (tests/audit/test_vectors.py).

A check is attempted when everything that it needs was established, and then looks at its
conditions one by one: the first that does not hold ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from vtrain.wire.report import Blame

Fact = Literal[
    "claim",
    "task",
    "manifest",
    "graph",
    "legal",
    "samples",
    "leaves",
    "records",
    "segments",
    "kzg_root",
    "kzg_leaves",
]

MISSING: Final[Mapping[Fact, str]] = {
    "claim": "there is no valid claim to hold it against",
    "task": "the task is not known",
    "manifest": "there is no manifest to go by",
    "graph": "the graph is not known",
    "legal": "there is no legal graph of this task",
    "samples": "the samples are not known",
    "leaves": "there is no log that the solver signed",
    "records": "the signed log is not one of this task",
    "segments": "the log commits to no state",
    "kzg_root": "the claim has no root of it",
    "kzg_leaves": "there is no KZG log that the solver signed",
}
"""What a check may need, and why it is not done where that is missing."""
REFUSED_FOR_PIN: Final = "the claim is not the one that was pinned"
"""Why not, where there is a claim that the pin alone refuses."""


@dataclass(frozen=True)
class Condition:
    """One thing that is looked at: what must hold, what its failure proves, and the place that is
    reported where it is not the check's own."""

    holds: str
    fault: Blame = "nobody"
    where: str = ""


@dataclass(frozen=True)
class Rule:
    """A check: its name, the place where it looks, what it needs, and its conditions in order.

    ``gives`` is what it establishes when it passes, in words, and ``fact`` what other checks need
    of it; ``only`` when it is made at all.
    """

    name: str
    place: str
    needs: tuple[Fact, ...]
    conditions: tuple[Condition, ...]
    gives: str = ""
    fact: Fact | None = None
    only: str = ""


def _file(holds: str) -> Condition:
    return Condition(f"The file is there, a regular file of a size that the auditor takes, {holds}")


STRUCTURE: Final = (
    Rule(
        "claim",
        "claim.cbor",
        (),
        (
            _file("and the canonical encoding of a `signed-claim`."),
            Condition("The signature of the claim's body by its `solver` holds (section 4c)."),
            Condition("Where the auditor names a solver, it is the claim's `solver`."),
            Condition(
                "Where the auditor kept the signed claim K as its pin, and this claim C has "
                'another digest: C does not contradict K ("A kept claim", below).',
                "solver",
            ),
            Condition("Where the auditor pinned a claim, this one has that digest."),
        ),
        gives="the claim",
        fact="claim",
    ),
    Rule(
        "task",
        "task.cbor",
        (),
        (
            _file("and the canonical encoding of a `task`."),
            Condition("Where there is a valid claim, its `task_id` is the id of this task."),
            Condition("Where the auditor names a task id, it is the id of this task."),
        ),
        gives="the task",
        fact="task",
    ),
    Rule(
        "complete",
        "claim.cbor",
        ("task", "claim"),
        (
            Condition(
                "The claim has a `kzg_root` just where the task's `commitments` have kzg.",
                "solver",
                "claim.kzg_root",
            ),
            Condition("`log_size` is at most the task's `steps`.", "solver", "claim.log_size"),
            Condition("`commit_every` divides `log_size`.", "nobody", "claim.cbor: claim.log_size"),
            Condition(
                "Where the auditor names a task id, `log_size` is the task's `steps`.",
                "nobody",
                "claim.cbor: claim.log_size",
            ),
        ),
    ),
    Rule(
        "manifest",
        "manifest.json",
        (),
        (_file("and JSON in its one form, with the fields of a `manifest`."),),
        gives="the manifest",
        fact="manifest",
    ),
    Rule(
        "index",
        "manifest.json",
        ("claim", "manifest"),
        (
            Condition("`run_id` is the claim's.", "nobody", "manifest.json: manifest.run_id"),
            Condition("`task_id` is the claim's.", "nobody", "manifest.json: manifest.task_id"),
            Condition(
                "`steps` is the claim's `log_size`.", "nobody", "manifest.json: manifest.steps"
            ),
        ),
    ),
    Rule(
        "graph",
        "graph.cbor",
        ("task",),
        (
            _file("and the canonical encoding of a `graph`."),
            Condition("Its root is the task's `graph_root`."),
        ),
        gives="the graph",
        fact="graph",
    ),
    Rule(
        "legality",
        "graph.cbor",
        ("graph",),
        (
            Condition(
                'The graph is legal (section 2, "When a graph is legal").',
                "task",
                "the node, as `node NAME (OP)`, or `graph`, or `state NAME`",
            ),
            Condition(
                'The graph is that of the task (section 2, "When a graph is that of a task").',
                "task",
                "the task's field, as `task.seed`",
            ),
            Condition("A step and a state are no larger than the auditor takes on."),
        ),
        gives="a legal graph",
        fact="legal",
    ),
    Rule(
        "files",
        "",
        ("manifest",),
        (
            Condition(
                "The manifest lists `task.cbor`, `graph.cbor`, `model.onnx` and `log.bin`, and "
                "`kzg.bin` where the task logs KZG commitments.",
                "nobody",
                "the file",
            ),
            Condition(
                "The file that it lists is one of these, the sample table or a checkpoint.",
                "nobody",
                "manifest.json",
            ),
            Condition(
                "It is listed with its size: the sample table with that which the task gives it, a "
                "checkpoint with that which the legal graph gives it.",
                "nobody",
                "the file",
            ),
            Condition(
                "It is there, a regular file, and has the size listed, which is no more than the "
                "auditor takes; then its plain BLAKE3 is the one listed.",
                "nobody",
                "the file",
            ),
        ),
    ),
    Rule(
        "model",
        "model.onnx",
        ("task",),
        (_file("and its plain BLAKE3 is the task's `model_digest`."),),
    ),
    Rule(
        "samples",
        "data/samples.bin",
        ("task",),
        (
            _file("and of just the size of the task's samples."),
            Condition(
                "The root of the tree over its rows is `data.root`; with `windows`, its plain "
                "BLAKE3 is."
            ),
        ),
        gives="the samples",
        fact="samples",
    ),
    Rule(
        "log",
        "log.bin",
        ("task", "claim"),
        (
            _file("begins with its 16 bytes and is whole frames from there on."),
            Condition("It has `log_size` records."),
            Condition("The root of the tree over them, whatever they are, is `log_root`."),
        ),
        gives="a log that the solver signed",
        fact="leaves",
    ),
    Rule(
        "records",
        "log.bin",
        ("legal", "leaves"),
        (
            Condition("Record t is the canonical encoding of a `record`.", "solver", "step t"),
            Condition("Its `step` is t.", "solver", "step t"),
            Condition(
                "Its `state_root` is not empty just where `commit_every` divides t.",
                "solver",
                "step t",
            ),
        ),
        gives="the records",
        fact="records",
    ),
    Rule(
        "batches",
        "log.bin",
        ("legal", "leaves", "records", "samples"),
        (
            Condition(
                "The `batch_digest` of each record t is that of the samples that seed and step "
                "dictate (section 3).",
                "solver",
                "step t, the least that fails",
            ),
        ),
    ),
    Rule(
        "kzg_log",
        "kzg.bin",
        ("legal", "claim", "kzg_root"),
        (
            _file("begins with its 16 bytes and is whole frames from there on."),
            Condition("It has floor(`log_size` / `every`) records."),
            Condition("The root of the tree over them is `kzg_root`."),
        ),
        gives="a KZG log that the solver signed",
        fact="kzg_leaves",
        only="where the task is known and logs KZG commitments",
    ),
    Rule(
        "kzg_records",
        "kzg.bin",
        ("legal", "claim", "kzg_leaves"),
        (
            Condition(
                "Record i (from 0) is the canonical encoding of a `kzg-record`; t is (i + 1) * "
                "`every`.",
                "solver",
                "step t",
            ),
            Condition("Its `step` is t.", "solver", "step t"),
            Condition(
                "`before` has as many commitments as the state has columns, each a point of the "
                "curve with reduced coordinates that is not the point at infinity.",
                "solver",
                "step t: before",
            ),
            Condition("So has `batch`, as the batch has columns.", "solver", "step t: batch"),
            Condition("So has `after`, as the state has.", "solver", "step t: after"),
            Condition(
                "Where t is 1, `before` and `before_key` are the task's `proof.initial` and "
                "`proof.initial_key`; where step t - 1 has a record too, they are the `after` and "
                "`after_key` of that one.",
                "solver",
                "step t: before",
            ),
        ),
        gives="the KZG records",
        only="where the task is known and logs KZG commitments",
    ),
    Rule(
        "checkpoints",
        "checkpoints",
        ("legal", "leaves", "records", "segments"),
        (
            Condition(
                "The checkpoint of s is there, a regular file of just the size and header that the "
                "graph gives.",
                "nobody",
                "the file",
            ),
            Condition(
                "Its state root is that of record s, for s = 0 the task's `initial_state_root`.",
                "nobody",
                "the file",
            ),
            Condition(
                "Each element is in the range of its `state` node.",
                "solver",
                "the file: state.NAME; the fault is the task's for s = 0",
            ),
            Condition(
                "The counter is s.",
                "solver",
                "the file: state.step; the fault is the task's for s = 0",
            ),
        ),
        gives="the checkpoints from which a replay can begin",
    ),
)
"""The structure check, in the order of its checks."""

REPLAY: Final = (
    Rule(
        "kzg",
        "",
        (),
        (
            Condition(
                "Where the checkpoint of step 0 has passed its check: the commitments to its "
                "state, and the id of the key that hides them, are `proof.initial` and "
                "`proof.initial_key`.",
                "task",
                "task.proof.initial",
            ),
            Condition(
                "In a step that is replayed and has a KZG record: the key of `before`, `batch` and "
                "`after`, in this order, is known, and its id is the one in the record; else the "
                "part is not compared, and the check is not done.",
                "nobody",
                "step t",
            ),
            Condition(
                "The commitments of a part that is compared are those to the tensors of the "
                "replay.",
                "solver",
                "step t for `batch`; else as for `state_root` below",
            ),
        ),
        only="where the task is known and logs KZG commitments, and the auditor gave an SRS file",
    ),
    Rule(
        "replay",
        "",
        (),
        (
            Condition("`batch_digest` of step t is the one computed.", "nobody", "step t"),
            Condition("`loss` of step t is the one computed.", "solver", "see below"),
            Condition("`state_root` of step t is the one computed.", "solver", "see below"),
        ),
        only="unless the auditor asks for no segment, or `kzg` has failed at a record",
    ),
)
"""What follows on the structure, in the order in which a report has it."""
RULES: Final = STRUCTURE + REPLAY

PUBLISHED_NEEDS: Final[Mapping[str, tuple[Fact, ...]]] = {"task": ("claim",)}
"""What checks of a run in a store need beyond what they need of a folder: a store is asked for
nothing but what the claim leads to."""

ALGEBRAIC: Final = (
    Rule(
        "trace",
        "",
        ("task", "legal", "samples", "records"),
        (
            Condition("There is something at `traces.cbor`.", "nobody", "`traces/traces.cbor`"),
            Condition(
                "It is a regular file of a size that the auditor takes, and the canonical encoding "
                "of a `signed-tensor-traces`.",
                "nobody",
                "`traces/traces.cbor`",
            ),
            Condition(
                "Its `claim` is the digest of the claim, and the signature over H_tensor traces of "
                "its body by the claim's solver holds.",
                "nobody",
                "`traces/traces.cbor`",
            ),
            Condition(
                "Where the auditor kept what was signed as its pin, this has another digest, and "
                "what was kept fulfils condition 3 too: no step has two traces in them.",
                "solver",
                "`traces/traces.cbor`",
            ),
            Condition(
                "Where the auditor pinned what was signed, this has that digest.",
                "nobody",
                "`traces/traces.cbor`",
            ),
            Condition(
                "For each interval chosen it has a trace of the last step.",
                "nobody",
                "`traces/traces.cbor`",
            ),
            Condition("The `size` of the trace is nodes times `commit_every`.", "solver", "step B"),
            Condition(
                "Its leaves are there, a regular file of just 32 bytes each, and are those under "
                "its `root`.",
                "nobody",
                "`traces/step-%012d.leaves`",
            ),
            Condition(
                "For each step t of it, rising: the leaf of the `record` node is that of record t "
                "of the log.",
                "solver",
                "step t",
            ),
        ),
        gives="the digests of all values of the intervals chosen",
    ),
    Rule(
        "algebraic",
        "",
        ("task", "legal", "samples", "records"),
        (
            Condition(
                "The leaves of the `state` nodes of step A give the state root that the log has "
                "before it.",
                "solver",
                "an element, where the checkpoint of step A - 1 has passed its check; else the "
                "interval",
            ),
            Condition(
                "`state`, step A: its bytes are there and have its digest.",
                "nobody",
                "the interval",
            ),
            Condition(
                "`state`, step A: each element is in the range of the node.",
                "solver",
                "an element; the fault is the task's for step 1",
            ),
            Condition(
                "`state`, later steps: its digest is that of the `next_state` of its name in the "
                "step before.",
                "solver",
                "an element",
            ),
            Condition(
                "`next_state` and `reshape`: its digest is that of its input.",
                "solver",
                "an element",
            ),
            Condition(
                "`tensor_digest`: its output is the digest of its input.", "solver", "an element"
            ),
            Condition(
                "`matmul` and `batched_matmul`: its bytes are there and have its digest.",
                "nobody",
                "the interval",
            ),
            Condition(
                "`matmul` and `batched_matmul`: each element is in the range of the node, and each "
                "row passes for each vector.",
                "solver",
                "an element",
            ),
            Condition(
                "Any other node: its output, computed from its inputs by "
                "[operators.md](operators.md), has its digest.",
                "solver",
                "an element",
            ),
        ),
    ),
)
"""What follows on the structure in an audit by values that the solver signed (docs/algebraic.md),
in the order in which a report has it."""

PROOFS: Final = (
    Rule(
        "proofs",
        "",
        ("task", "legal", "records"),
        (),
        only="where something that it needs is missing; it is not done then, and nothing follows",
    ),
    Rule(
        "srs",
        "",
        (),
        (
            Condition(
                "Where the task has a `proof`, the SRS file is the one that it names. What fails "
                "ends the audit.",
                "nobody",
                "the SRS file, as the auditor named it",
            ),
        ),
        gives="with what proofs are checked: as the task's `proof` has it, else over this SRS",
    ),
    Rule(
        "owner",
        "",
        (),
        (
            Condition("Its `owner` is the key that the auditor named.", "nobody", "batches"),
            Condition(
                "The signature by `owner` over H_batches of its body holds.", "nobody", "batches"
            ),
            Condition(
                "Its `order` is that of the task: data, seed, batch, steps, and how it commits.",
                "nobody",
                "batches",
            ),
            Condition(
                "Where the KZG records are established: the `batch` of each, in order, is what was "
                "signed for its step.",
                "nobody",
                "step t",
            ),
        ),
        only="where the auditor gave commitments to batches (`--batches`, `--owner`)",
    ),
    Rule(
        "sample",
        "",
        (),
        (),
        only="where more steps were to be drawn than there are to be proven; it passes always",
    ),
    Rule(
        "proof",
        "step t",
        (),
        (
            Condition(
                "`proofs/step-%012d.cbor` of t is there, a regular file of a size that the auditor "
                "takes, and the canonical encoding of a `bundle`."
            ),
            Condition(
                "Its `circuit_name` is that of a circuit of whole steps, and one that the task "
                "pins, if it pins any."
            ),
            Condition("Its statement is the one about step t of this claim (section 4b)."),
            Condition(
                "The k is 17 or more; the auditor's own circuit is no larger than it takes on; "
                "where the task pins it, circuit and key have the digests pinned."
            ),
            Condition("Circuit and key of the statement have the digests of the auditor's own."),
            Condition(
                "Where the task logs KZG commitments, or with `--private`: the KZG records are "
                "established."
            ),
            Condition(
                "Without `--private`: the samples are established, and a checkpoint before t. Step "
                "t is done again from the last that has passed its check (`replay`, `kzg` below)."
            ),
            Condition("The proof holds for these commitments (section 4b)."),
        ),
        gives="that step t is one of the law",
    ),
    Rule(
        "replay",
        "",
        (),
        (
            Condition(
                "Each step up to t that is done again gives the record that the log has.",
                "solver",
                "the step",
            ),
        ),
        only="without `--private`, where it fails; it stands in the place of `proof` of step t",
    ),
    Rule(
        "kzg",
        "step t",
        (),
        (
            Condition(
                "The ids of the keys of `before`, `batch` and `after` are those in the record; "
                "else `proof` has failed.",
                "nobody",
                "",
            ),
            Condition(
                "The commitments in the record are those to the tensors; the fault is the task's "
                "for `before` of step 1.",
                "solver",
                "",
            ),
        ),
        only=(
            "without `--private`, where the task logs KZG commitments and condition 2 fails; it "
            "stands in the place of `proof` of step t"
        ),
    ),
)
"""What follows on the structure in an audit by proofs of whole steps (docs/proofs.md), in the order
in which a report has it; of tiles docs/tiling.md has it, in section 7."""
PUBLIC_CHECKS: Final = frozenset(
    {"claim", "task", "complete", "graph", "kzg_log", "kzg_records", "legality", "log", "records"}
)
"""The checks of the structure that need nothing but public files."""
