"""What the API says in JSON: for people and programs that only watch.  Bytes are hexadecimal.

What is signed or hashed travels in canonical CBOR instead (``receipts``, ``vtrain.wire.dispute``).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from vtrain.dispute.service.games import Info, Loaded
from vtrain.dispute.service.receipts import Event
from vtrain.dispute.service.webhooks import Hook
from vtrain.dispute.state import Fall, Game, Verdict

Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]


class Problem(BaseModel):
    """An error (RFC 9457); ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    where: str
    fault: str


class InfoView(BaseModel):
    """The service: the key of its receipts, its time, and what it takes on."""

    service: Hex
    clock: int
    opening_bytes: int
    move_bytes: int
    page: int
    wait_seconds: float
    least_clocks: dict[str, int]


class GameLine(BaseModel):
    """A game in a list."""

    number: int
    game: Hex
    over: bool


class GameList(BaseModel):
    """Games by number."""

    games: list[GameLine]


class FallView(BaseModel):
    """How a claim fell."""

    reason: str
    match: int
    place: str
    at: int


class EntryView(BaseModel):
    """A claim and who stands behind it."""

    root: Hex
    side: int
    backers: list[Hex]
    fall: FallView | None


class TournamentView(BaseModel):
    """Claims about one thing."""

    tree: str
    parent: int
    size: int
    closes: int
    round: int
    over: bool
    winner: int
    matches: list[int]
    entries: list[EntryView]


class MatchView(BaseModel):
    """Two claims on the way to their first difference; ``deadlines`` of -1: owes nothing."""

    tournament: int
    sides: list[int]
    stage: str
    tree: str
    start: int
    end: int
    place: str
    left: list[int]
    deadlines: list[int]
    nested: int


class VerdictView(BaseModel):
    """``standing`` is empty when no claim stands; ``solver``: how its claim fell, if it did."""

    standing: Hex
    solver: FallView | None
    barred: list[Hex]


class GameView(BaseModel):
    """A game at its time ``now`` (milliseconds)."""

    game: Hex
    task: Hex
    solver: Hex
    log_size: int
    log_root: Hex
    now: int
    moves: int
    sequence: int
    clocks: dict[str, int]
    tournaments: list[TournamentView]
    matches: list[MatchView]
    verdict: VerdictView | None


class EventView(BaseModel):
    """What happened; ``digest`` is that of the body in the transcript."""

    sequence: int
    kind: str
    at: int
    digest: Hex


class EventList(BaseModel):
    """Events after a cursor, and the game's time."""

    now: int
    more: bool
    events: list[EventView]


class HookRequest(BaseModel):
    """A webhook for one game, or for all."""

    url: Annotated[str, Field(max_length=2048)]
    game: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


class HookView(BaseModel):
    """A webhook; ``due`` is -1 once it has been given up."""

    webhook: int
    url: str
    game: Hex
    attempts: int
    due: int
    trouble: str


class NewHookView(HookView):
    """A new webhook with its secret, which is shown this once."""

    secret: Hex


class HookList(BaseModel):
    """All webhooks."""

    webhooks: list[HookView]


def show_info(info: Info) -> InfoView:
    """The service itself."""
    limits = info.limits
    return InfoView(
        service=info.key.hex(),
        clock=info.clock,
        opening_bytes=limits.opening,
        move_bytes=limits.move,
        page=limits.page,
        wait_seconds=limits.wait_seconds,
        least_clocks=dict(vars(limits.least)),
    )


def show_game(game: Game, loaded: Loaded, verdict: Verdict | None) -> GameView:
    """A game for people."""
    genesis = game.genesis
    return GameView(
        game=game.id.hex(),
        task=genesis.task_id.hex(),
        solver=genesis.solver.hex(),
        log_size=genesis.log_size,
        log_root=genesis.log_root.hex(),
        now=game.now,
        moves=game.moves,
        sequence=loaded.sequence,
        clocks=dict(vars(genesis.clocks)),
        tournaments=[
            TournamentView(
                tree=tournament.tree,
                parent=tournament.parent,
                size=tournament.size,
                closes=tournament.closes,
                round=tournament.round,
                over=bool(tournament.over),
                winner=tournament.winner,
                matches=list(tournament.matches),
                entries=[
                    EntryView(
                        root=entry.root.hex(),
                        side=entry.side,
                        backers=[backer.hex() for backer in entry.backers],
                        fall=_show_fall(entry.fall),
                    )
                    for entry in tournament.entries
                ],
            )
            for tournament in game.tournaments
        ],
        matches=[
            MatchView(
                tournament=match.tournament,
                sides=list(match.sides),
                stage=match.stage,
                tree=match.tree,
                start=match.start,
                end=match.end,
                place=match.place.describe(),
                left=list(match.left),
                deadlines=[match.deadline(side) if match.owes(side) else -1 for side in (0, 1)],
                nested=match.nested,
            )
            for match in game.matches
        ],
        verdict=None if verdict is None else show_verdict(verdict),
    )


def show_verdict(verdict: Verdict) -> VerdictView:
    """A verdict for people."""
    return VerdictView(
        standing=verdict.standing.hex(),
        solver=_show_fall(verdict.solver),
        barred=[party.hex() for party in verdict.barred],
    )


def show_event(event: Event) -> EventView:
    """An event without its body."""
    receipt = event.signed.receipt
    return EventView(
        sequence=receipt.sequence, kind=receipt.kind, at=receipt.at, digest=receipt.digest.hex()
    )


def show_hook(hook: Hook) -> HookView:
    """A webhook without its secret."""
    return HookView(
        webhook=hook.number,
        url=hook.url,
        game=hook.game.hex(),
        attempts=hook.attempts,
        due=hook.due,
        trouble=hook.trouble,
    )


def show_new_hook(hook: Hook) -> NewHookView:
    """A webhook with its secret."""
    return NewHookView(**show_hook(hook).model_dump(), secret=hook.secret.hex())


def _show_fall(fall: Fall | None) -> FallView | None:
    if fall is None:
        return None
    return FallView(reason=fall.reason, match=fall.match, place=fall.place.describe(), at=fall.at)
