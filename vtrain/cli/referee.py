"""``vtrain referee``: judge one leaf of a dispute from its statement."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli.common import (
    VtrainCommand,
    existing_file,
    json_option,
    print_json,
    print_pairs,
)

MAX_STATEMENT = 16 << 20


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

    ruling = decode_ruling(_core.referee_judge(read_file(statement, MAX_STATEMENT)))
    right = [f"claim {side + 1}" for side in (0, 1) if ruling.right[side]]
    if as_json:
        print_json(
            {
                "what": ruling.what,
                "after": ruling.after.hex(),
                "blocks": ruling.blocks,
                "right": [bool(side) for side in ruling.right],
            }
        )
        return
    print_pairs(
        {
            "judged": ruling.what,
            "comes out": ruling.after.hex() or "nothing that the law allows",
            "right": " and ".join(right) or "neither claim",
        }
    )
