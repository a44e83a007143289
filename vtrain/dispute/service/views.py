"""What the API says in JSON: for people and programs that only watch.  Bytes are hexadecimal.

What is signed or hashed travels in canonical CBOR instead (``receipts``, ``vtrain.wire.dispute``).
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from vtrain.dispute.game import find_deadline, find_verdict
from vtrain.dispute.receipts import Event
from vtrain.dispute.service.games import Info, Loaded
from vtrain.dispute.service.ledger import Balance
from vtrain.dispute.service.webhooks import Hook
from vtrain.dispute.state import Fall, Game, Verdict

Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
Party = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_CLAIMS: Final = 256


class Problem(BaseModel):
    """An error (RFC 9457); ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    where: str
    fault: str
    refusal: Annotated[Hex, Field(description="The service's signed refusal of a move, if any.")]


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
    place: str
    at: int


class ClaimView(BaseModel):
    """A claim of the log, and how many stand behind it."""

    root: Hex
    backers: int
    fall: FallView | None


class VerdictView(BaseModel):
    """``standing`` is empty when no claim stands; ``solver``: how its claim fell, if it did."""

    standing: Hex
    solver: FallView | None
    at: int
    bonds: int
    outcomes: Hex


class GameView(BaseModel):
    """A game at its time ``now`` (milliseconds).

    ``claims`` are the first of the ``claims_in_all`` of the log; ``asked`` is how many questions
    are open; ``due`` when time alone may change something, -1 for never.
    """

    game: Hex
    host: Hex
    task: Hex
    solver: Hex
    log_size: int
    log_root: Hex
    now: int
    moves: int
    sequence: int
    round: int
    due: int
    asked: int
    clocks: dict[str, int]
    bonds: dict[str, int]
    claims_in_all: int
    claims: list[ClaimView]
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


class DepositRequest(BaseModel):
    """What the operator has received from a party, or (negative) pays out to it.

    The same ``reference`` counts once.
    """

    party: Party
    amount: Annotated[int, Field(ge=-(2**53), le=2**53)]
    reference: Annotated[str, Field(min_length=1, max_length=255)]


class DepositView(BaseModel):
    """What a party has, and how much of it is locked in games."""

    party: Party
    free: int
    locked: int


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


def show_game(game: Game, loaded: Loaded) -> GameView:
    """A game for people."""
    genesis, verdict, due = game.genesis, find_verdict(game), find_deadline(game)
    first = sorted(game.logs.items(), key=lambda claim: claim[1].order)[:_CLAIMS]
    return GameView(
        game=game.id.hex(),
        host=genesis.host.hex(),
        task=genesis.task_id.hex(),
        solver=genesis.solver.hex(),
        log_size=genesis.log_size,
        log_root=genesis.log_root.hex(),
        now=game.now,
        moves=game.moves,
        sequence=loaded.sequence,
        round=game.round,
        due=-1 if due is None else due,
        asked=len(game.asked),
        clocks=dict(vars(genesis.clocks)),
        bonds=dict(vars(genesis.bonds)),
        claims_in_all=len(game.logs),
        claims=[
            ClaimView(
                root=root.hex(),
                backers=len(game.backers.get((game.id, root), ())),
                fall=_show_fall(claim.fall),
            )
            for root, claim in first
        ],
        verdict=None if verdict is None else show_verdict(verdict),
    )


def show_verdict(verdict: Verdict) -> VerdictView:
    """A verdict for people."""
    return VerdictView(
        standing=verdict.standing.hex(),
        solver=_show_fall(verdict.solver),
        at=verdict.at,
        bonds=verdict.bonds,
        outcomes=verdict.outcomes.hex(),
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


def show_deposit(party: bytes, balance: Balance) -> DepositView:
    """What a party has."""
    return DepositView(party=party.hex(), free=balance.free, locked=balance.locked)


def _show_fall(fall: Fall | None) -> FallView | None:
    if fall is None:
        return None
    return FallView(reason=fall.reason, place=fall.place.describe(), at=fall.at)
