"""``vtrain task``: look at a task before anyone signs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import EXIT_USAGE, echo, print_json
from vtrain.cli.common import (
    VtrainCommand,
    accumulate_option,
    count,
    existing_file,
    json_option,
    naming_lint,
    print_pairs,
    recompute_option,
    threads_option,
)

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask


@click.group("task")
def command() -> None:
    """Look at a task before anyone signs it."""


@command.command("check", cls=VtrainCommand)
@existing_file("task")
@threads_option
@accumulate_option
@recompute_option
@click.option(
    "--lint",
    is_flag=True,
    help="List everything that is wrong with TASK, each with what mends it, instead of stopping at "
    "the first; ends with 2 if there is anything.",
)
@json_option
def check(
    task: Path, threads: int, accumulate: int, recompute: bool, lint: bool, as_json: bool
) -> int:
    """Compile TASK, prove its ranges, and show everything that its id pins.

    "step_memory" is no part of the task: the bytes that a step of the cpu engine takes, beside the
    samples and at most 24 MiB of packed operands, with the options that "vtrain train" is to have.
    """
    from vtrain.engines.registry import measure_step_memory
    from vtrain.engines.saving import Saving
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.task import compile_task, load_task

    if lint:
        return _lint(task, as_json)
    with naming_lint(task):
        compiled = compile_task(load_task(task), CommitKey)
    memory = measure_step_memory(
        compiled.graph, compiled.samples, threads=threads, saving=Saving(accumulate, recompute)
    )
    if as_json:
        print_json({**_to_dict(compiled), "step_memory": memory})
    else:
        _print(compiled)
        echo()
        print_pairs({"step_memory": memory})
    return 0


def _lint(task: Path, as_json: bool) -> int:
    from vtrain.train.lint import lint_task

    found = lint_task(task)
    if as_json:
        lists = {
            name: [
                {"path": p.path, "what": p.what, "reason": p.reason, "fix": p.instead}
                for p in problems
            ]
            for name, problems in (("problems", found.problems), ("advice", found.advice))
        }
        print_json(lists)
    else:
        for problem in (*found.problems, *found.advice):
            kind = "advice: " if problem in found.advice else ""
            echo(f"{kind}{problem.path}: {problem.what}: {problem.reason}")
            echo(f"    fix: {problem.instead}")
        echo(count(len(found.problems), "problem"), err=True)
    return EXIT_USAGE if found.problems else 0


def _roots(task: CompiledTask) -> dict[str, str]:
    spec = task.spec
    return {
        "task_id": task.task_id.hex(),
        "graph_root": spec.graph_root.hex(),
        "initial_state_root": spec.initial_state_root.hex(),
        "data_root": spec.data.root.hex(),
        "model_digest": spec.model_digest.hex(),
    }


def _numbers(task: CompiledTask) -> dict[str, int]:
    spec = task.spec
    return {
        "seed": spec.seed,
        "steps": spec.steps,
        "batch": spec.batch,
        "commit_every": spec.commit_every,
        "checkpoint_every": spec.checkpoint_every,
        "samples": spec.data.samples,
    }


def _proof(task: CompiledTask) -> dict[str, Any] | None:
    proof = task.spec.proof
    if proof is None:
        return None
    return {
        "circuit": proof.circuit,
        "srs": proof.srs.hex(),
        "k": proof.k,
        "blinding": proof.blinding,
        "every": proof.every,
        "initial": [commitment.hex() for commitment in proof.initial],
        "circuits": {
            name: {"circuit": pin.circuit.hex(), "key": pin.key.hex()}
            for name, pin in sorted(proof.circuits.items())
        },
    }


def _beacon(task: CompiledTask) -> dict[str, Any] | None:
    rule = task.spec.beacon
    if rule is None:
        return None
    return {
        "chain": rule.chain.hex(),
        "delay": rule.delay,
        "authorities": [root.hex() for root in rule.authorities],
    }


def _nodes(task: CompiledTask) -> list[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "op": node.op,
            "dtype": output.dtype,
            "shape": list(output.shape),
            "exponent": output.exponent,
            "lo": output.lo,
            "hi": output.hi,
        }
        for node in task.graph.nodes
        for output in node.outputs
    ]


def _to_dict(task: CompiledTask) -> dict[str, Any]:
    return {
        "name": task.name,
        "law": task.spec.law,
        **_roots(task),
        **_numbers(task),
        "exponents": dict(sorted(task.spec.exponents.items())),
        "commitments": list(task.spec.commitments),
        "proof": _proof(task),
        "beacon": _beacon(task),
        "notes": list(task.notes),
        "nodes": _nodes(task),
    }


def _print(task: CompiledTask) -> None:
    from vtrain.printable import cut

    rows = [("node", "operator", "dtype", "shape", "exponent", "least", "most")]
    for node in _nodes(task):
        shape = "x".join(map(str, node["shape"])) or "scalar"
        numbers = (str(node[key]) for key in ("exponent", "lo", "hi"))
        rows.append((cut(node["name"], 100), node["op"], node["dtype"], shape, *numbers))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(cells).rstrip())
    echo()
    echo("Exponents of the calibrated sites")
    print_pairs(dict(sorted(task.spec.exponents.items())))
    echo()
    print_pairs(_numbers(task))
    echo()
    print_pairs(_roots(task))
    proof = _proof(task)
    if proof is not None:
        pins = {f"{name}.{key}": pin[key] for name, pin in proof["circuits"].items() for key in pin}
        initial = {f"initial {i}": point for i, point in enumerate(proof["initial"])}
        scalars = ("circuit", "srs", "k", "blinding", "every")
        echo()
        echo(f"Proofs; commitments logged: {', '.join(task.spec.commitments)}")
        print_pairs({**{key: proof[key] for key in scalars}, **pins, **initial})
    beacon = _beacon(task)
    if beacon is not None:
        roots = ", ".join(beacon["authorities"]) or "any that the auditor takes"
        echo()
        echo("Audits draw by a beacon")
        print_pairs({**beacon, "authorities": roots})
    if task.notes:
        echo()
        for note in task.notes:
            echo(f"note: {note}")
