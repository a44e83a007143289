"""``vtrain dispute``: open, join, play and watch a dispute at a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    engine_option,
    existing_folder,
    json_option,
    print_json,
    print_pairs,
)

if TYPE_CHECKING:
    from vtrain.dispute.provider import TraceProvider
    from vtrain.dispute.state import Verdict

EXIT_FRAUD = 1
EXIT_NOBODY = 3

_game = click.argument("game", type=HexBytes(32, 32), metavar="GAME")
_url = click.option("--url", required=True, help="Address of the service.")
_service = click.option(
    "--service",
    type=HexBytes(32, 32),
    metavar="HEX",
    help="Key of the service's receipts; otherwise what it says itself is taken.",
)
_key = click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your key (vtrain key new).",
)
_defend = click.option(
    "--defend",
    is_flag=True,
    help="Stand behind the claim of RUN itself; otherwise behind the true one, trained anew.",
)


@click.group("dispute")
def command() -> None:
    """Dispute what a run claims: two parties, one of whom is right, need trust neither."""


@command.command("open", cls=VtrainCommand)
@existing_folder("run")
@_url
@_service
@click.option(
    "--replay-seconds",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    help="Time that one commitment interval takes to trace; clocks are a multiple of it.",
)
@click.option(
    "--least-seconds",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    default=60.0,
    show_default=True,
    help="With --replay-seconds: no clock is shorter.",
)
@json_option
def open_(
    run: Path,
    url: str,
    service: bytes | None,
    replay_seconds: float | None,
    least_seconds: float,
    as_json: bool,
) -> None:
    """Open a dispute about the claim of RUN; anyone may.  Prints the game's id."""
    from vtrain.dispute.client import connect
    from vtrain.dispute.genesis import DEFAULT_CLOCKS, make_clocks, make_genesis
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim, read_graph, read_task
    from vtrain.wire.graph import encode_graph
    from vtrain.wire.task import encode_task

    paths = RunPaths(run)
    task = read_task(paths)
    graph = read_graph(paths, task)
    clocks = DEFAULT_CLOCKS
    if replay_seconds is not None:
        least = max(4, round(least_seconds * 1000))
        clocks = make_clocks(max(1, round(replay_seconds * 1000)), least=least)
    genesis = make_genesis(task, graph, read_claim(paths), opened=0, clocks=clocks)
    with connect(url, service) as client:
        receipt = client.open(genesis, encode_task(task), encode_graph(graph)).receipt
    _show({"game": receipt.game.hex(), "service": receipt.service.hex()}, as_json)


@command.command("join", cls=VtrainCommand)
@_game
@existing_folder("run")
@_url
@_service
@_key
@_defend
@engine_option
@json_option
def join(
    game: bytes,
    run: Path,
    url: str,
    service: bytes | None,
    key: Path,
    defend: bool,
    engine: str,
    as_json: bool,
) -> None:
    """Stand behind a claim in GAME, which is about RUN; the bond is the game's first move.

    Whoever joins must also play.
    """
    from vtrain.attest.keys import load_key
    from vtrain.dispute.client import Follower, connect
    from vtrain.dispute.journal import FileJournal
    from vtrain.dispute.players import Player
    from vtrain.wire.dispute import Bond, decode_move

    private = load_key(key)
    with connect(url, service) as client:
        provider = _make_provider(run, game, client.genesis(game), defend, engine)
        follower = Follower(client, game)
        follower.poll()
        journal = FileJournal(_get_journal(key, game, client.service))
        sent = [
            client.move(signed).receipt
            for signed in Player(provider, private, journal).moves(follower.game)
            if isinstance(decode_move(signed.move), Bond)
        ]
        journal.close()
    pairs = {"game": game.hex(), "root": provider.log().root.hex(), "bonds": len(sent)}
    _show(pairs, as_json)


@command.command("play", cls=VtrainCommand)
@_game
@existing_folder("run")
@_url
@_service
@_key
@_defend
@engine_option
@json_option
def play(
    game: bytes,
    run: Path,
    url: str,
    service: bytes | None,
    key: Path,
    defend: bool,
    engine: str,
    as_json: bool,
) -> int:
    """Join GAME, which is about RUN, and make every move that is owed, until there is a verdict.

    Stopped and started again, it goes on; the journal of what was signed is beside the key.

    Exit code 0: the solver's claim stands.  1: it fell.  2: bad usage.  3: no claim stands.
    """
    from vtrain.attest.keys import load_key
    from vtrain.dispute import client as clients
    from vtrain.dispute.journal import FileJournal
    from vtrain.dispute.players import Player

    private = load_key(key)
    with clients.connect(url, service) as client:
        provider = _make_provider(run, game, client.genesis(game), defend, engine)
        journal = FileJournal(_get_journal(key, game, client.service))
        verdict = clients.play(
            clients.Follower(client, game),
            client,
            Player(provider, private, journal),
            progress=lambda state, what: click.echo(f"{state.now} {what}", err=True),
        )
        journal.close()
    return _show_verdict(verdict, as_json)


@command.command("watch", cls=VtrainCommand)
@_game
@_url
@_service
@json_option
def watch(game: bytes, url: str, service: bytes | None, as_json: bool) -> int:
    """Follow GAME to its verdict, replaying every move by the rules.

    Exit code 0: the solver's claim stands.  1: it fell.  2: bad usage.  3: no claim stands.
    """
    from vtrain.dispute.client import Follower, connect
    from vtrain.dispute.game import find_verdict

    with connect(url, service) as client:
        follower = Follower(client, game)
        while (verdict := find_verdict(follower.game)) is None:
            for receipt in follower.poll(wait=20.0):
                click.echo(f"{receipt.sequence:>5}  {receipt.at:>10} ms  {receipt.kind}", err=True)
    return _show_verdict(verdict, as_json)


def _make_provider(
    run: Path, game: bytes, genesis: Any, defend: bool, engine: str
) -> TraceProvider:
    """The claim to play for; RunError when the run is not what the game is about."""
    from vtrain.dispute import run_provider
    from vtrain.dispute.genesis import make_genesis
    from vtrain.dispute.state import compute_game_id
    from vtrain.errors import RunError

    disputed = run_provider.load_run(run)
    own = make_genesis(
        disputed.task.spec,
        disputed.task.graph,
        disputed.signed,
        opened=genesis.opened,
        clocks=genesis.clocks,
        arity=genesis.arity,
        nonce=genesis.nonce,
    )
    if compute_game_id(own) != game:
        raise RunError("the game is about another run, task or graph", where=str(run))
    make: Callable[..., TraceProvider] = run_provider.defend if defend else run_provider.redo
    return make(disputed, engine=engine)


def _get_journal(key: Path, game: bytes, service: bytes) -> Path:
    """One for each game at each service: a game can have a history at each."""
    return key.with_name(f"{key.name}.{game.hex()}.{service.hex()[:16]}.journal")


def _show_verdict(verdict: Verdict, as_json: bool) -> int:
    fall = verdict.solver
    stands = "stands" if fall is None else f"fell: {fall.reason} at {fall.place.describe()}"
    pairs: dict[str, Any] = {
        "game": verdict.game.hex(),
        "solver": stands,
        "standing": verdict.standing.hex() or "none",
        "barred": ", ".join(party.hex() for party in verdict.barred) or "nobody",
    }
    _show(pairs, as_json)
    if fall is None:
        return 0
    return EXIT_FRAUD if verdict.standing else EXIT_NOBODY


def _show(pairs: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)
