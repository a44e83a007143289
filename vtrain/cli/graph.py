"""``vtrain graph``: the step graph in other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import print_json
from vtrain.cli.common import VtrainCommand, json_option, print_pairs

if TYPE_CHECKING:
    from vtrain.wire.graph import StepGraph


@click.group("graph")
def command() -> None:
    """The step graph in other formats."""


@command.command("export-onnx", cls=VtrainCommand)
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE"
)
@json_option
def export_onnx(source: Path, out: Path, as_json: bool) -> None:
    """Write the step graph of SOURCE, a run directory or a task file, as integer ONNX operators.

    Any ONNX runtime then computes a step to the same bits: a third opinion on the engines.
    """
    from vtrain.commit.files import write_atomic
    from vtrain.graph.legality import check_graph
    from vtrain.graph.onnx_export import export_step_graph
    from vtrain.graph.onnx_file import save_model

    graph = _load_graph(source)
    check_graph(graph)
    model = export_step_graph(graph)
    write_atomic(out, [save_model(model)])
    pairs = {"onnx": str(out), "nodes": len(model.graph.node)}
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)


def _load_graph(source: Path) -> StepGraph:
    if source.is_dir():
        from vtrain.commit.files import read_file
        from vtrain.limits import LIMITS
        from vtrain.train.layout import RunPaths
        from vtrain.wire.graph import decode_graph

        data = read_file(RunPaths(source).graph, LIMITS.graph_bytes, root=source)
        return decode_graph(data)
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.task import compile_task, load_task

    return compile_task(load_task(source), CommitKey).graph
