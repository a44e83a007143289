"""``vtrain referee``: judge one leaf of a dispute from its statement."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_file,
    json_option,
    print_pairs,
)

SIDES = ("first claim", "second claim")
"""The two of a statement's ``claims``, in their order."""


@click.command("referee", cls=VtrainCommand)
@existing_file("statement")
@json_option
def command(statement: Path, as_json: bool) -> None:
    """Judge the dispute leaf in the file STATEMENT (docs/dispute.md): who computed it rightly.

    Exit code 0 when there is a ruling, whoever is right; 2 when the statement is refused: an
    opening does not verify, is missing, or is not needed.
    """
    from vtrain import _core
    from vtrain.commit.files import read_file
    from vtrain.dispute.statement import decode_ruling
    from vtrain.limits import LIMITS

    ruling = decode_ruling(_core.referee_judge(read_file(statement, LIMITS.statement_bytes)))
    right = [name for name, good in zip(SIDES, ruling.right, strict=True) if good]
    if as_json:
        print_json(
            {
                "what": ruling.what,
                "after": ruling.after.hex(),
                "blocks": ruling.blocks,
                "right": [bool(side) for side in ruling.right],
                "sides": SIDES,
            }
        )
        return
    print_pairs(
        {
            "judged": ruling.what,
            "counted": f"from 0: blocks 0 to {ruling.blocks - 1}, step 0 is the trace's first",
            "comes out": ruling.after.hex() or "nothing that the law allows",
            "right": " and ".join(right) or "neither claim",
        }
    )
