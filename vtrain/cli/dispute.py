"""``vtrain dispute``: open, join, play and watch a dispute at a service."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    engine_option,
    existing_folder,
    json_option,
    naming_option,
    print_pairs,
    show_progress,
)
from vtrain.wire.report import EXIT_CODES

if TYPE_CHECKING:
    from vtrain.dispute.engine_provider import EngineProvider
    from vtrain.dispute.kept_states import Keep
    from vtrain.dispute.receipts import Event
    from vtrain.dispute.state import Fall, Game, Verdict
    from vtrain.dispute.waits import Wait
    from vtrain.wire.dispute import Bonds, Clocks, Genesis, SignedMove

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
_keep_bytes = click.option(
    "--keep-bytes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Disk for states of the run, so that no answer starts far back.  [default: 4 GiB]",
)
_keep_folder = click.option(
    "--keep-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where they lie, and stay for the next time.  [default: a temporary folder]",
)
_data = click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The sample table, for a run trained with --no-data.",
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
    help="Time that one commitment interval takes to trace; clocks are a multiple of it."
    "  [default: join, trace and budget 1 h each, terms 10 min, grace 5 min]",
)
@click.option(
    "--least-seconds",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    help="With --replay-seconds: no window and no budget is shorter.  [default: 60]",
)
@click.option(
    "--price",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Bonds cost so many of the market's units for each second of honest work; 0: nothing.",
)
@json_option
def open_(
    run: Path,
    url: str,
    service: bytes | None,
    replay_seconds: float | None,
    least_seconds: float | None,
    price: int,
    as_json: bool,
) -> None:
    """Open a dispute about the claim of RUN; anyone may.

    Prints the game's id and its clocks.
    """
    if least_seconds is not None and replay_seconds is None:
        raise click.UsageError("--least-seconds needs --replay-seconds")
    from vtrain.dispute.client import connect
    from vtrain.dispute.genesis import (
        DEFAULT_CLOCKS,
        FREE,
        MINUTE,
        make_bonds,
        make_clocks,
        make_genesis,
        measure_openings,
    )
    from vtrain.dispute.problems import TermsError
    from vtrain.errors import SignatureError
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim, read_graph, read_task
    from vtrain.wire.graph import encode_graph
    from vtrain.wire.task import encode_task

    paths = RunPaths(run)
    task = read_task(paths)
    graph = read_graph(paths, task)
    signed = read_claim(paths)
    clocks = DEFAULT_CLOCKS
    if replay_seconds is not None:
        least = MINUTE if least_seconds is None else max(4, round(least_seconds * 1000))
        clocks = make_clocks(
            max(1, round(replay_seconds * 1000)),
            intervals=-(-signed.claim.log_size // task.commit_every),
            least=least,
            leaf_bytes=measure_openings(task, graph),
        )
    bonds = make_bonds(clocks, price=price) if price else FREE
    with connect(url) as client:
        if service not in (None, client.service):
            # Before the game is opened: it would stay open.
            raise SignatureError(
                f"the service signs with the key {client.service.hex()}, which is not --service",
                where=url,
            )
        genesis = make_genesis(
            task, graph, signed, host=client.service, opened=0, clocks=clocks, bonds=bonds
        )
        try:
            receipt = client.open(genesis, encode_task(task), encode_graph(graph)).receipt
        except TermsError as error:
            hint = "a longer --least-seconds here, or a shorter serve --least-clock there"
            if error.where.startswith("bonds"):
                hint = "a --price above 0 here, or serve --free-bonds there"
            raise TermsError(f"{error.message}: give {hint}", where=error.where) from error
    _show(
        {
            "game": receipt.game.hex(),
            "service": receipt.service.hex(),
            "clocks": _show_clocks(clocks, as_json),
            "bonds": dict(vars(bonds)) if as_json else _show_bonds(bonds),
        },
        as_json,
    )


@command.command("join", cls=VtrainCommand)
@_game
@existing_folder("run")
@_url
@_service
@_key
@_defend
@_data
@_keep_bytes
@_keep_folder
@engine_option
@json_option
def join(
    game: bytes,
    run: Path,
    url: str,
    service: bytes | None,
    key: Path,
    defend: bool,
    data: Path | None,
    keep_bytes: int | None,
    keep_folder: Path | None,
    engine: str,
    as_json: bool,
) -> None:
    """Stand behind a claim in GAME, which is about RUN; the bond is the game's first move.

    Whoever joins must also play.  A key that stands behind this claim already has joined: "bonds
    placed" ("bonds" in JSON) are those of this call, 1 or 0.
    """
    from vtrain.attest.keys import load_key, public_key
    from vtrain.dispute.client import Follower, connect
    from vtrain.dispute.players import Player

    with naming_option("--key", key):
        private = load_key(key)
    with connect(url, service) as client:
        follower = Follower(client, game)
        follower.poll()
        _check_open(follower.game)
        keep = _make_keep(keep_bytes, keep_folder)
        provider = _make_provider(run, follower.game.genesis, defend, data, engine, keep)
        follower.poll()
        root = provider.log().root
        bonds = 0
        if _lacks_bond(follower.game, public_key(private), root):
            with _naming_claim(run, defend):
                _check_clocks(follower.game.genesis.clocks, provider)
            # The bond comes before everything else that is owed.
            client.move(next(Player(provider, private).moves(follower.game)))
            bonds = 1
    label = "bonds" if as_json else "bonds placed"
    _show({"game": game.hex(), "root": root.hex(), label: bonds}, as_json)


@command.command("play", cls=VtrainCommand)
@_game
@existing_folder("run")
@_url
@_service
@_key
@_defend
@_data
@_keep_bytes
@_keep_folder
@engine_option
@json_option
def play(
    game: bytes,
    run: Path,
    url: str,
    service: bytes | None,
    key: Path,
    defend: bool,
    data: Path | None,
    keep_bytes: int | None,
    keep_folder: Path | None,
    engine: str,
    as_json: bool,
) -> int:
    """Join GAME, which is about RUN, and make every move that is owed, until there is a verdict.

    Stopped and started again, it goes on: whatever it says follows from its claim.  Moves, and what
    is waited for until when, are on stderr.  The bonds counted in the end are those that all
    parties placed in the game; the solver's own claim has none.

    \b
    Exit code 0: the solver's claim stands.
    10: it was refuted and another stands, which is the challenger's win.
    2: bad usage, or --defend of what cannot be defended.
    3: it fell by silence, no claim stands, this key never got into the game (no money for a bond,
    too late), or the service is away or contradicts itself.
    """
    from vtrain.attest.keys import load_key, public_key
    from vtrain.dispute import client as clients
    from vtrain.dispute.background import Background
    from vtrain.dispute.players import Player

    with naming_option("--key", key):
        private = load_key(key)
    with clients.connect(url, service) as client:
        shown = _Waits()
        follower = clients.Follower(client, game, hear=shown.hear)
        keep = _make_keep(keep_bytes, keep_folder)
        provider = _make_provider(run, follower.game.genesis, defend, data, engine, keep)
        follower.poll()
        if not follower.game.over and _lacks_bond(
            follower.game, public_key(private), provider.log().root
        ):
            with _naming_claim(run, defend):
                _check_clocks(follower.game.genesis.clocks, provider)
        with (
            _naming_claim(run, defend),
            _naming_folder(keep_folder),
            Background(provider) as background,
            shown.showing(),
        ):
            player = Player(provider, private, background)
            verdict = clients.play(
                follower, client, player, progress=_print_trouble, waiting=shown.tell
            )
    code = show_verdict(verdict, as_json)
    if follower.game.stands.get((game, public_key(private))) is None:
        # Whatever stands, it is nothing that this player had a part in.
        echo("this key never stood behind a claim of the game", err=True)
        return EXIT_CODES["inconclusive"]
    return code


@command.command("watch", cls=VtrainCommand)
@_game
@_url
@_service
@json_option
def watch(game: bytes, url: str, service: bytes | None, as_json: bool) -> int:
    """Follow GAME to its verdict, replaying every move by the rules.

    Moves, and what is waited for until when, are on stderr.  The bonds counted in the end are those
    that all parties placed in the game; the solver's own claim has none.

    \b
    Exit code 0: the solver's claim stands.
    10: it was refuted and another stands, which is the challenger's win.
    2: bad usage.
    3: it fell by silence, no claim stands, or the service is away or contradicts itself.
    """
    from vtrain.dispute import client as clients

    with clients.connect(url, service) as client:
        shown = _Waits()
        follower = clients.Follower(client, game, hear=shown.hear)
        with shown.showing():
            verdict = clients.watch(follower, progress=_print_trouble, waiting=shown.tell)
    return show_verdict(verdict, as_json)


def _check_open(game: Game) -> None:
    from vtrain.errors import MoveRefusedError

    if game.over:
        raise MoveRefusedError("the game is over", where="game")


def _lacks_bond(game: Game, party: bytes, root: bytes) -> bool:
    """Has ``party`` still to bond ``root``?  MoveRefusedError when it cannot."""
    from vtrain.errors import MoveRefusedError

    _check_open(game)
    backed = game.stands.get((game.id, party))
    if backed is not None:
        if backed != root:
            raise MoveRefusedError(f"this key stands behind {backed.hex()} already", where="key")
        return False
    known = game.logs.get(root)
    if known is None and game.round > 0:
        raise MoveRefusedError("takes no new claims any more", where="game")
    if known is not None and known.fall is not None:
        raise MoveRefusedError("this claim has fallen already", where="game")
    return True


def _make_provider(
    run: Path, genesis: Genesis, defend: bool, data: Path | None, engine: str, keep: Keep
) -> EngineProvider:
    """The claim to play for; RunError when the run is not what the game is about."""
    from vtrain.dispute import run_provider
    from vtrain.dispute.genesis import make_genesis
    from vtrain.dispute.state import compute_game_id
    from vtrain.errors import RunError

    with naming_option("--data", data):
        disputed = run_provider.load_run(run, data=data)
    own = make_genesis(
        disputed.task.spec,
        disputed.task.graph,
        disputed.signed,
        host=genesis.host,
        opened=genesis.opened,
        clocks=genesis.clocks,
        bonds=genesis.bonds,
        arity=genesis.arity,
        group=genesis.group,
        nonce=genesis.nonce,
    )
    if compute_game_id(own) != compute_game_id(genesis):
        raise RunError("the game is about another run, task or graph", where=str(run))
    steps = disputed.signed.claim.log_size
    with (
        show_progress(lines=True) as progress,
        _naming_claim(run, defend),
        _naming_folder(keep.folder),
    ):
        if defend:
            return run_provider.defend(
                disputed,
                engine=engine,
                keep=keep,
                progress=lambda done: progress("getting ready", done, steps),
            )
        return run_provider.redo(
            disputed,
            engine=engine,
            keep=keep,
            progress=lambda done: progress("training anew", done, steps),
        )


@contextmanager
def _naming_claim(run: Path, defend: bool) -> Iterator[None]:
    """A step that does not come out as the log of ``run`` says -> RunError that names the run."""
    from vtrain.errors import RunError

    try:
        yield
    except RunError as error:
        if not defend or not error.where.startswith("step "):
            raise
        reason = f"this claim cannot be defended: {error.where} {error.message}"
        raise RunError(reason, where=str(run)) from error


def _naming_folder(folder: Path | None) -> AbstractContextManager[None]:
    """A StorageError in the folder of kept states names the option for it."""
    return naming_option("--keep-folder", folder or "temporary folder")


def _make_keep(keep_bytes: int | None, folder: Path | None) -> Keep:
    """What the options say that a player may keep."""
    from vtrain.dispute.kept_states import DEFAULT_KEEP_BYTES, Keep

    return Keep(DEFAULT_KEEP_BYTES if keep_bytes is None else keep_bytes, folder=folder)


def _check_clocks(clocks: Clocks, provider: EngineProvider) -> None:
    """ClocksError, before anything is bonded, for clocks by which a true claim could be lost."""
    provider.check_clocks(trace=clocks.trace, replay=clocks.replay)


def show_verdict(verdict: Verdict, as_json: bool) -> int:
    """Print how a game ended; the exit code of whoever watched it: 10 where the claim was shown to
    be false and another stands."""
    fall = verdict.solver
    standing = verdict.standing.hex()
    if as_json:
        print_json(
            {
                "game": verdict.game.hex(),
                "solver": None if fall is None else _list_fall(fall),
                "standing": standing or None,
                "bonds": verdict.bonds,
            }
        )
    else:
        print_pairs(
            {
                "game": verdict.game.hex(),
                "solver": "stands" if fall is None else _describe_fall(fall),
                "standing": standing or "none",
                "bonds in the game": str(verdict.bonds),
            }
        )
    if fall is None:
        return 0
    shown = fall.reason in ("refuted", "malformed")  # silence may be a crash, and proves nothing
    return EXIT_CODES["fraud" if shown and verdict.standing else "inconclusive"]


def _list_fall(fall: Fall) -> dict[str, str | int | None]:
    """How a claim fell; None for what of the place is not known."""
    place = {name: None if index < 0 else index for name, index in vars(fall.place).items()}
    return {"reason": fall.reason, **place}


def _describe_fall(fall: Fall) -> str:
    place = fall.place.describe()
    return f"fell: {fall.reason} at {place}" if place else f"fell: {fall.reason}"


def _show_clocks(clocks: Clocks, as_json: bool) -> dict[str, float] | str:
    """In seconds."""
    seconds = {name: milliseconds / 1000 for name, milliseconds in vars(clocks).items()}
    if as_json:
        return seconds
    return ", ".join(f"{name} {value:.15g} s" for name, value in seconds.items())


def _show_bonds(bonds: Bonds) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in vars(bonds).items())


class _Waits:
    """Says on stderr what a game waits for, and until when: on a terminal in a line that counts
    down, elsewhere in a line of its own for each wait that lasts."""

    def __init__(self) -> None:
        self._live = False
        self._said = ""
        self._now: tuple[str, float | None] = "", None
        """What is waited for now, and when that ends by the monotonic clock of this process: one
        value, since the terminal's line is drawn by a thread of its own."""

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Keep the line on the terminal, if there is one."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(
            get_renderable=lambda: Text(self._describe(), no_wrap=True, overflow="ellipsis"),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
        ):
            self._live = True
            try:
                yield
            finally:
                self._live, self._now = False, ("", None)

    def hear(self, game: Game, event: Event) -> None:
        """Print an event: what was waited for may be there."""
        self._now = "", None
        _print_event(game, event)

    def tell(self, game: Game, wait: Wait) -> None:
        """Say what is waited for, by the game's time as last heard."""
        line, ends = f"waits for {wait.what}", None
        if wait.until is not None:
            left = max(0, wait.until - game.now) / 1000
            line, ends = f"{line}, until {wait.until} ms", time.monotonic() + left
        self._now = line, ends
        if not self._live and line != self._said:
            self._said = line
            echo(f"{game.now:>10} ms     -  {self._describe()}", err=True)

    def _describe(self) -> str:
        line, ends = self._now
        if ends is None:
            return line
        return f"{line}: {max(0.0, ends - time.monotonic()):.0f} s left"


def _print_event(game: Game, event: Event) -> None:
    """An event on stderr; ``game`` is the one after it."""
    from vtrain.wire import structs
    from vtrain.wire.dispute import SignedMove

    receipt = event.signed.receipt
    what: str = receipt.kind
    if what == "move":
        what += f"  {_describe_move(game, structs.decode(SignedMove, event.body, 'move'))}"
    echo(f"{receipt.at:>10} ms  {receipt.sequence:>4}  {what}", err=True)


def _print_trouble(game: Game, what: str) -> None:
    """What goes wrong, in the words of the service perhaps, at the game's time as last heard."""
    echo(f"{game.now:>10} ms     -  {what}", err=True)


def _describe_move(game: Game, signed: SignedMove) -> str:
    """Who, what, and how far the disagreement is located after it."""
    from vtrain.dispute.state import Answer
    from vtrain.wire.dispute import Bond, decode_move

    move = decode_move(signed.move)
    words = f"{signed.party.hex()[:8]}  {type(move).__name__.lower()}"
    if isinstance(move, Bond):
        scope = game.sides.get(signed.about)
        level = "log" if scope is None else game.contests[scope].level
        words += f" {move.root.hex()[:8]} of the {level}"
        place = "" if scope is None else game.contests[scope].place.describe()
    else:
        # What was asked is not asked any more; the answer says where it counted.
        answer = None if game.answers is None else game.answers.last
        place = ""
        if isinstance(answer, Answer):
            contest, dispute, _ = answer.where[0]
            found = game.contests[contest].disputes[dispute]
            place = found.place.describe() or game.contests[contest].place.describe()
    return f"{words}: {place}" if place else words


def _show(pairs: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)
