"""A client of the dispute service that takes the service's signed word alone, and holds it to that.

``DisputeClient`` speaks the API; ``Follower`` replays a game from its receipts and signed times, so
that whatever the service says is either what the rules make of signed moves, or a ServiceFaultError
that holds what was signed.  The key that all must be signed with is in the genesis, hence in the
game's id.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.problems import (
    BusyError,
    NotFoundError,
    ProblemError,
    RequestError,
    ServiceFaultError,
    StallError,
    find_refusal,
    from_problem,
)
from vtrain.dispute.receipts import (
    Chain,
    Event,
    Opening,
    Page,
    Receipt,
    SignedReceipt,
    SignedRefusal,
    compute_body_digest,
    to_moves,
    verify_signed,
)
from vtrain.dispute.service import require_client
from vtrain.dispute.state import DisputedGraph, Game, Verdict, compute_game_id
from vtrain.dispute.transcript import make, replay
from vtrain.dispute.waits import REPLAY, Wait, find_wait
from vtrain.errors import EncodingError, MoveRefusedError, SignatureError, VtrainError
from vtrain.limits import LIMITS
from vtrain.wire import structs
from vtrain.wire.dispute import MAX_MOVE, Genesis, SignedMove
from vtrain.wire.graph import StepGraph, decode_graph
from vtrain.wire.json_text import decode_json

if TYPE_CHECKING:
    import httpx

    from vtrain.dispute.players import Player

CBOR: Final = "application/cbor"
_ATTEMPTS: Final = 6
_KEPT: Final = 1024
"""Refusals that a client keeps."""
_SMALL: Final = 1 << 20
"""Bytes of an answer that is no page and no graph."""
_LEAST_WAIT: Final = 0.05
PATIENCE: Final = 3600.0
"""Seconds for which ``play`` and ``watch`` go on without a signed word that says anything new."""
_PAGES: Final = 256
"""Pages of a transcript that one poll takes at most."""
_PENDING: Final = 0.1
"""Seconds after which a provider that computes something is asked again whether it is there."""
_QUIET: Final = 1.0
"""Seconds without an event after which it is said what is waited for."""
_RETRY: Final = 0.5
"""Seconds before a service that was away is asked again."""


class DisputeClient:
    """Talks to the service at ``url`` (http or https), whose receipts are by the key ``service``.

    ``service`` should be known from elsewhere; None takes what the service says first, and holds it
    to that.  What it says of a game is by the key in the game's genesis, whatever this one is.  A
    request takes ``timeout`` seconds in all, or that and what it was asked to wait; one that did
    not arrive, or found the service busy, is sent again a few times: every request may be.
    BusyError when it stays away, ServiceFaultError when it contradicts itself, and what the service
    refuses as the error that it names.  ``transport`` and ``pause`` (seconds) are for tests.
    """

    def __init__(
        self,
        url: str,
        service: bytes | None = None,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        require_client()
        import httpx

        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise RequestError("is no URL", where="url") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise RequestError("is no http or https URL", where="url")
        from vtrain.dispute.service.transport import TimedTransport

        self._http = httpx.Client(
            base_url=parsed,
            timeout=timeout,
            transport=transport or TimedTransport(timeout),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )
        self._timeout, self._pause = timeout, pause
        self._address = parsed.netloc.decode()
        self._service = service
        self._hosts: dict[bytes, bytes] = {}
        self.refusals: deque[tuple[SignedMove, SignedRefusal]] = deque(maxlen=_KEPT)
        """Moves that were refused, with the service's signed word on it."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def service(self) -> bytes:
        """The key that receipts must be by."""
        if self._service is None:
            try:
                self._service = bytes.fromhex(self.info()["service"])
            except (KeyError, TypeError, ValueError) as error:
                raise ServiceFaultError("says nothing of its key", where="info") from error
        return self._service

    def info(self) -> dict[str, Any]:
        """The service's key, time and limits."""
        return _read_json(self._request("GET", "/v1/info"))

    def list_games(self, after: int = 0) -> list[dict[str, Any]]:
        """Games after a number: maps of number, game, over."""
        found = _read_json(self._request("GET", "/v1/games", params={"after": after}))
        games = found.get("games")
        if not isinstance(games, list) or not all(isinstance(game, dict) for game in games):
            raise ServiceFaultError("does not answer with a list of games", where="games")
        return games

    def open(
        self, genesis: Genesis, task: bytes, graph: bytes, *, idempotency_key: str = ""
    ) -> SignedReceipt:
        """Open a game with canonical task and graph bytes; its first receipt."""
        body = structs.encode(Opening(genesis, task, graph))
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = self._request("POST", "/v1/games", body=body, headers=headers)
        game = compute_game_id(genesis)
        self._hosts[game] = genesis.host
        return self._check_receipt(answer, game, structs.encode(genesis))

    def move(self, signed: SignedMove) -> SignedReceipt:
        """Make a move; its receipt.  The same move again gives the same receipt.

        An error by which it is refused has the service's signed word on that, which is checked and
        kept in ``refusals``; ServiceFaultError when it is for something else.
        """
        body = structs.encode(signed)
        try:
            answer = self._request("POST", f"/v1/games/{signed.game.hex()}/moves", body=body)
        except VtrainError as error:
            if find_refusal(error):
                self._keep_refusal(signed, body, find_refusal(error))
            raise
        return self._check_receipt(answer, signed.game, body)

    def _keep_refusal(self, signed: SignedMove, body: bytes, data: bytes) -> None:
        found = structs.decode(SignedRefusal, data, "refusal")
        self._check_signed(found, signed.game)
        about = (found.refusal.game, found.refusal.digest)
        if about != (signed.game, compute_body_digest(body)):
            raise ServiceFaultError("is for something else", where="refusal", proof=(data,))
        self.refusals.append((signed, found))

    def _check_receipt(self, answer: bytes, game: bytes, body: bytes) -> SignedReceipt:
        signed = structs.decode(SignedReceipt, answer, "receipt")
        self._check_signed(signed, game)
        if signed.receipt.game != game or signed.receipt.digest != compute_body_digest(body):
            raise ServiceFaultError("is for something else", where="receipt", proof=(answer,))
        return signed

    def _check_signed(self, signed: SignedReceipt | SignedRefusal, game: bytes) -> None:
        try:
            verify_signed(signed, self.find_host(game))
        except SignatureError as error:
            raise ServiceFaultError(error.message, where="receipt") from error

    def find_host(self, game: bytes) -> bytes:
        """The key in a game's genesis, which all that is said of the game is signed with.

        SignatureError when it is not the one that this client was told to expect.
        """
        if game not in self._hosts:
            self._hosts[game] = self.genesis(game).host
        host = self._hosts[game]
        if self._service not in (None, host):
            raise ServiceFaultError("names another host than was expected", where="genesis")
        return host

    def genesis(self, game: bytes) -> Genesis:
        """The genesis of a game, which is what its id says."""
        data = self._request("GET", f"/v1/games/{game.hex()}/genesis")
        genesis = structs.decode(Genesis, data, "genesis")
        if compute_game_id(genesis) != game:
            raise ServiceFaultError("is of another game", where="genesis")
        return genesis

    def document(self, game: bytes, name: str) -> bytes:
        """The canonical ``task`` or ``graph`` that the game was opened with, unchecked."""
        most = LIMITS.service_answer_bytes
        return self._request("GET", f"/v1/games/{game.hex()}/{name}", most=most)

    def view(self, game: bytes) -> dict[str, Any]:
        """A game for people, on the service's word."""
        return _read_json(self._request("GET", f"/v1/games/{game.hex()}"))

    def verdict(self, game: bytes) -> tuple[Verdict, SignedReceipt]:
        """The verdict with its receipt; NotFoundError while the game goes on."""
        data = self._request("GET", f"/v1/games/{game.hex()}/verdict")
        event = structs.decode(Event, data, "verdict")
        signed = self._check_receipt(structs.encode(event.signed), game, event.body)
        return structs.decode(Verdict, event.body, "verdict"), signed

    def events(self, game: bytes, after: int = 0, wait: float = 0) -> dict[str, Any]:
        """Events after a cursor as JSON has them, waiting up to ``wait`` seconds for one."""
        path = f"/v1/games/{game.hex()}/events"
        return _read_json(self._request("GET", path, params={"after": after, "wait": wait}))

    def transcript(self, game: bytes, after: int = 0, wait: float = 0) -> Page:
        """Events after a cursor with bodies and receipts, unchecked: see :class:`Follower`."""
        path = f"/v1/games/{game.hex()}/transcript"
        most = 2 * (MAX_MOVE + _SMALL)
        data = self._request("GET", path, params={"after": after, "wait": wait}, most=most)
        return structs.decode(Page, data, "transcript")

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, float] | None = None,
        most: int = _SMALL,
    ) -> bytes:
        """The body of the answer, of ``most`` bytes at most."""
        import httpx

        from vtrain.dispute.service.transport import TOTAL

        where = self._address + path
        headers = {**(headers or {}), **({} if body is None else {"Content-Type": CBOR})}
        total = self._timeout + (params or {}).get("wait", 0)
        timeout = httpx.Timeout(self._timeout, read=total)
        trouble: BusyError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._pause(0.1 * 2**attempt)
            try:
                with self._http.stream(
                    method,
                    path,
                    content=body,
                    headers=headers,
                    params=params,
                    timeout=timeout,
                    extensions={TOTAL: total},
                ) as response:
                    data = _read(response, most)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
                trouble = BusyError(f"does not answer: {why}", where=where)
                trouble.__cause__ = error
                continue
            if response.is_success:
                return data
            # 429 and 5xx may be the word of a gateway before the service: it says nothing of it.
            if response.status_code != 429 and response.status_code < 500:
                raise _find_problem(response.status_code, data, where)
            trouble = BusyError(f"answers {response.status_code}", where=where)
        raise trouble or BusyError("does not answer", where=where)


class Follower:
    """One game, replayed as its events come in: ``game`` is what the rules make of them.

    Its time goes on by what the service signed alone: receipts, and times between them, each of
    which holds the service to having nothing earlier to show.  SignatureError when the solver's
    claim is not signed.  ``hear`` is told each event that is new, with the game after it;
    ``graph`` is the step graph, which is asked of the service otherwise.
    """

    def __init__(
        self,
        client: DisputeClient,
        game: bytes,
        *,
        graph: StepGraph | DisputedGraph | None = None,
        hear: Callable[[Game, Event], None] = lambda game, event: None,
    ) -> None:
        self._client, self.id, self._hear = client, game, hear
        genesis = client.genesis(game)
        self._chain = Chain(game, client.find_host(game))
        self.game = start(genesis, graph or decode_graph(client.document(game, "graph")))
        self.events: list[Event] = []
        """All events so far."""
        self.verdict: Verdict | None = None
        """What the service has signed, and the rules give, once it has."""
        self.more = False
        """Has the service more than the last poll took?"""

    def poll(self, wait: float = 0, *, between: Callable[[], None] = lambda: None) -> list[Receipt]:
        """Take in what is new, waiting up to ``wait`` seconds for something.

        It takes so many pages at most; :attr:`more` says whether there are others.  What
        ``between`` raises, after each page, ends it.  ServiceFaultError when the service
        contradicts what it signed, or the rules, which its ``proof`` shows.
        """
        new: list[Receipt] = []
        for _ in range(_PAGES):
            try:
                page = self._client.transcript(self.id, self._chain.sequence, wait)
            except NotFoundError as error:
                proof = tuple(structs.encode(event.signed) for event in self.events[-1:])
                raise _DenialError(
                    f"denies what it signed: {error}", where="transcript", proof=proof
                ) from error
            new.extend(self._take(event) for event in page.events)
            self.more, wait = bool(page.more), 0
            if page.game != self.id or (self.more and not page.events):
                raise ServiceFaultError("is no page of this game", where="transcript")
            now = self._chain.hear(page.time)
            if now > self.game.now:
                self.game = advance(self.game, now)
            between()
            if not self.more:
                break
        return new

    def _take(self, event: Event) -> Receipt:
        receipt = self._chain.extend(event)
        where = f"event {receipt.sequence}"
        proof = (structs.encode(event),)
        if (receipt.kind == "opened") != (receipt.sequence == 1):
            raise ServiceFaultError("is no first event", where=where, proof=proof)
        self._check_end(event, where)
        try:
            for entry in to_moves([event]):
                self.game = make(self.game, entry, where)
        except (EncodingError, MoveRefusedError, SignatureError) as error:
            reason = f"accepted against the rules: {error}"
            raise ServiceFaultError(reason, where=where, proof=proof) from error
        if receipt.kind == "opened" and event.body != structs.encode(self.game.genesis):
            raise ServiceFaultError("is another genesis", where=where, proof=proof)
        if receipt.kind == "verdict":
            verdict = find_verdict(self.game)
            if verdict is None or structs.encode(verdict) != event.body:
                reason = "is not the verdict that the moves lead to"
                raise ServiceFaultError(reason, where=where, proof=proof)
            self.verdict = verdict
        self.events.append(event)
        self._hear(self.game, event)
        return receipt

    def _check_end(self, event: Event, where: str) -> None:
        """After the verdict comes that it is settled, once, with an empty body, and nothing else.

        Otherwise a service could sign such events for ever, and always say something new.
        """
        last = self.events[-1].signed if self.events else None
        kind = event.signed.receipt.kind
        before = last.receipt.kind if last else ""
        if before == "settled":
            reason = "comes after the end"
        elif (kind == "settled") != (before == "verdict"):
            reason = "is settled without a verdict" if kind == "settled" else "is after the verdict"
        elif kind == "settled" and event.body:
            reason = "is settled with a body"
        else:
            return
        proof = (structs.encode(event), *([structs.encode(last)] if last else []))
        raise ServiceFaultError(reason, where=where, proof=proof)

    def is_wrongful(self, signed: SignedMove, refused: SignedRefusal) -> bool:
        """Do the rules allow a move that the service refused by them, as its receipts have it?

        False while there is something that the refusal rests on and this follower does not know,
        and for a bond that the market refused.
        """
        refusal = refused.refusal
        if refusal.code == "bond-refused" or not 0 < refusal.sequence <= len(self.events):
            return False
        before = self.events[: refusal.sequence]
        game = replay(self.game.genesis, self.game.graph, to_moves(before))
        try:
            apply(game, signed, max(refusal.at, game.now))
        except VtrainError:
            return False
        return True


class _DenialError(ServiceFaultError):
    """A game is denied, which nobody signed: it ends a poll, and not a game."""


@contextmanager
def connect(url: str, service: bytes | None = None) -> Iterator[DisputeClient]:
    """A client that is closed in the end."""
    client = DisputeClient(url, service)
    try:
        yield client
    finally:
        client.close()


def watch(
    follower: Follower,
    *,
    wait: float = 20.0,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Game, str], None] = lambda game, what: None,
    waiting: Callable[[Game, Wait], None] = lambda game, what: None,
) -> Verdict:
    """Follow a game to its verdict, also when the service is away for a time.

    ``progress`` and ``waiting`` are told what :func:`play` tells; ServiceFaultError and StallError
    end it as they do that.
    """
    patient, quiet = _Patience(follower, patience, clock), _Quiet(follower, waiting)
    pause = 0.0
    while follower.verdict is None:
        if not _poll(follower, pause, patient, progress):
            continue
        if follower.more:
            pause = 0.0
            continue
        idle = wait if follower.game.over else min(wait, _until_deadline(follower.game))
        pause = quiet.note(pause, idle)
    return follower.verdict


def _poll(
    follower: Follower,
    wait: float,
    patient: _Patience,
    progress: Callable[[Game, str], None],
) -> bool:
    """Poll once: did the service answer?  Only a fault that we have found, and a stall, end it."""
    patient.check()
    try:
        follower.poll(wait, between=patient.check)
    except VtrainError as error:
        found = isinstance(error, ServiceFaultError) and not isinstance(error, _DenialError)
        if found or isinstance(error, StallError):
            raise
        progress(follower.game, f"no answer: {error}")
        time.sleep(_RETRY)
        patient.check()
        return False
    return True


def play(
    follower: Follower,
    client: DisputeClient,
    player: Player,
    *,
    wait: float = 20.0,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Game, str], None] = lambda game, what: None,
    waiting: Callable[[Game, Wait], None] = lambda game, what: None,
) -> Verdict:
    """Make every move that ``player`` owes, until there is a verdict.

    It returns on the verdict that the service signed and the rules give, on nothing else.  A move
    that is refused was overtaken by another's, or is not possible now; whatever is still owed is
    tried again, also when the service is away, or refuses what the rules allow: the signed word on
    that is in ``client.refusals``.  A ServiceFaultError that was found here ends it: the service
    cannot be relied on; what it says unsigned does not, whatever error it names.  So does
    StallError, when for ``patience`` seconds, by ``clock``, signed time stands still, or nothing
    signed says that the game, which is over, has its verdict.  ``progress`` is told what goes
    wrong, ``waiting`` what is waited for, once nothing has happened for a second; ``Follower``
    tells of the events.
    """
    pause = 0.0
    patient, quiet = _Patience(follower, patience, clock), _Quiet(follower, waiting)
    while True:
        if not _poll(follower, pause, patient, progress):
            continue
        if follower.verdict is not None:
            return follower.verdict
        if follower.more:  # what is owed by an old state may be another's by now
            pause = 0.0
            continue
        sent, away, refused = 0, False, False
        for signed in player.moves(follower.game):
            try:
                client.move(signed)
                sent += 1
            except ServiceFaultError:
                raise
            except VtrainError as error:
                refused = True
                away |= isinstance(error, BusyError)
                progress(follower.game, _describe_refusal(follower, client, signed, error))
        idle = _RETRY if away else min(wait, _until_deadline(follower.game))
        if player.waits:  # whoever was refused is not refused ten times a second
            idle = min(idle, _RETRY if refused else _PENDING)
        if sent:
            pause = 0.0
            continue
        pause = quiet.note(pause, idle, replays=player.waits)


def _describe_refusal(
    follower: Follower, client: DisputeClient, signed: SignedMove, error: VtrainError
) -> str:
    wrongful = (
        bool(find_refusal(error))
        and bool(client.refusals)
        and client.refusals[-1][0] == signed
        and follower.is_wrongful(*client.refusals[-1])
    )
    told = "refused against the rules, which the service signed" if wrongful else "refused"
    return f"{told}: {error}"


class _Patience:
    """Ends the waiting for a service that says nothing new."""

    def __init__(self, follower: Follower, seconds: float, clock: Callable[[], float]) -> None:
        self._follower, self._seconds, self._clock = follower, seconds, clock
        self._known, self._since = -2, clock()

    def check(self) -> None:
        """StallError when time has stood still for too long, whatever events there are.

        Once the game is over by its signed time, only the verdict is news.
        """
        if self._follower.verdict is not None:
            return
        game = self._follower.game
        known = -1 if game.over else game.now
        if known != self._known:
            self._known, self._since = known, self._clock()
        elif self._clock() - self._since > self._seconds:
            reason = "the game is over, and no verdict comes" if game.over else "time stands still"
            raise StallError(reason, where=f"game {game.id.hex()}")


class _Quiet:
    """Says what is waited for, once nothing has happened for a while."""

    def __init__(self, follower: Follower, waiting: Callable[[Game, Wait], None]) -> None:
        self._follower, self._waiting = follower, waiting
        self._known, self._seconds = 0, 0.0

    def note(self, waited: float, idle: float, *, replays: bool = False) -> float:
        """After ``waited`` seconds: how many of the ``idle`` ones to wait before the next look."""
        known = len(self._follower.events)
        self._seconds = self._seconds + waited if known == self._known else 0.0
        self._known = known
        left = _QUIET - self._seconds
        if left > _LEAST_WAIT:
            return min(idle, left)
        game = self._follower.game
        self._waiting(game, REPLAY if replays else find_wait(game))
        return idle


def _until_deadline(game: Game) -> float:
    """Seconds until time alone may change what is owed: that is no event, and nobody is woken."""
    due = find_deadline(game)
    return _LEAST_WAIT if due is None else max((due - game.now) / 1000, _LEAST_WAIT)


def _read(response: httpx.Response, most: int) -> bytes:
    """The answer's body, no longer than what was asked for may be."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServiceFaultError("is compressed: few bytes could be many", where="answer")
    data = bytearray()
    for part in response.iter_bytes():
        data += part
        if len(data) > most:
            raise ServiceFaultError(f"answers with over {most} bytes", where="answer")
    return bytes(data)


def _read_json(data: bytes) -> dict[str, Any]:
    try:
        found = decode_json(data, "answer")
    except EncodingError as error:
        raise ServiceFaultError("does not answer in JSON", where="answer") from error
    if not isinstance(found, dict):
        raise ServiceFaultError("does not answer with an object", where="answer")
    return found


def _find_problem(status: int, data: bytes, where: str) -> VtrainError:
    try:
        return from_problem(_read_json(data))
    except ServiceFaultError:
        return ProblemError(f"answers with {status}", where=where)
