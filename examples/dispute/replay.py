"""Replay a saved transcript, trusting nobody: replay.py GAME SERVICE_KEY FOLDER (hexadecimal ids).

FOLDER has the pages of the transcript and the graph as docs/service.md has curl fetch them.
"""

import sys
from pathlib import Path

from vtrain.dispute import Genesis, compute_game_id, find_statements, find_verdict, replay
from vtrain.dispute.receipts import Chain, Page, to_moves
from vtrain.errors import VtrainError
from vtrain.wire import structs
from vtrain.wire.graph import decode_graph


def main(game: bytes, service: bytes, folder: Path) -> None:
    """Say how the game ended, and write the statements that were judged."""
    files = sorted(folder.glob("page-*.cbor"))
    pages = [structs.decode(Page, file.read_bytes(), file.name) for file in files]
    events = [event for page in pages for event in page.events]
    if not events:
        sys.exit(f"{folder} has no page-*.cbor with events")
    chain = Chain(game, service)
    for event in events:
        chain.extend(event)  # every receipt is signed, follows the one before, and fits its event
    genesis = structs.decode(Genesis, events[0].body, "genesis")
    if (compute_game_id(genesis), genesis.host) != (game, service):
        sys.exit("the transcript is of another game or host")
    graph = decode_graph((folder / "graph.cbor").read_bytes())  # the one that the genesis names
    moves = to_moves(events)
    verdict = find_verdict(replay(genesis, graph, moves))
    said = [event.body for event in events if event.signed.receipt.kind == "verdict"]
    if verdict is None and not said:
        sys.exit("there is no verdict yet")
    if verdict is None or said != [structs.encode(verdict)]:
        sys.exit("the service's verdict is not what the moves lead to")
    print(f"{len(events)} events replayed: {verdict.standing.hex() or 'no claim'} stands")
    for index, statement in enumerate(find_statements(genesis, graph, moves)):
        (folder / f"statement-{index}.cbor").write_bytes(statement)  # for `vtrain referee`


if len(sys.argv) != 4:
    sys.exit("usage: replay.py GAME SERVICE_KEY FOLDER")
try:
    game_id, service_key, where = sys.argv[1:]
    main(bytes.fromhex(game_id), bytes.fromhex(service_key), Path(where))
except (VtrainError, ValueError, OSError) as error:
    sys.exit(f"replay.py: {error}")
