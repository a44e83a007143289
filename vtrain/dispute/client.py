"""A client of the dispute service that takes the service's word for nothing but the time.

``DisputeClient`` speaks the API; ``Follower`` replays a game from its receipts, so that whatever
the service says is either what the rules make of signed moves, or a ServiceFaultError.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vtrain.dispute.game import advance, find_deadline, find_verdict, start
from vtrain.dispute.service import require_client
from vtrain.dispute.service.problems import (
    BusyError,
    RequestError,
    ServiceFaultError,
    from_problem,
)
from vtrain.dispute.service.receipts import (
    Chain,
    Event,
    Opening,
    Page,
    Receipt,
    SignedReceipt,
    compute_body_digest,
    to_moves,
    verify_receipt,
)
from vtrain.dispute.state import Game, Verdict, compute_game_id
from vtrain.dispute.transcript import make
from vtrain.errors import EncodingError, MoveRefusedError, SignatureError, VtrainError
from vtrain.limits import LIMITS
from vtrain.wire import structs
from vtrain.wire.dispute import Genesis, SignedMove

if TYPE_CHECKING:
    import httpx

    from vtrain.dispute.players import Player

CBOR: Final = "application/cbor"
_ATTEMPTS: Final = 6
_LEAST_WAIT: Final = 0.05
_RETRY: Final = 0.5
"""Seconds before a service that was away is asked again."""


class DisputeClient:
    """Talks to the service at ``url`` (http or https), whose receipts are by the key ``service``.

    ``service`` should be known from elsewhere; None takes what the service says first, and holds it
    to that.  A request that did not arrive, or found the service busy, is sent again a few times:
    every request may be.  BusyError when it stays away, ServiceFaultError when it contradicts
    itself, and what the service refuses as the error that it names.  ``transport`` and ``pause``
    (seconds) are for tests.
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
        self._http = httpx.Client(base_url=parsed, timeout=timeout, transport=transport)
        self._timeout, self._pause = timeout, pause
        self._address = parsed.netloc.decode()
        self._service = service

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
        return list(found.get("games", ()))

    def open(
        self, genesis: Genesis, task: bytes, graph: bytes, *, idempotency_key: str = ""
    ) -> SignedReceipt:
        """Open a game with canonical task and graph bytes; its first receipt."""
        body = structs.encode(Opening(genesis, task, graph))
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = self._request("POST", "/v1/games", body=body, headers=headers)
        return self._check_receipt(answer, compute_game_id(genesis), structs.encode(genesis))

    def move(self, signed: SignedMove) -> SignedReceipt:
        """Make a move; its receipt.  The same move again gives the same receipt."""
        body = structs.encode(signed)
        answer = self._request("POST", f"/v1/games/{signed.game.hex()}/moves", body=body)
        return self._check_receipt(answer, signed.game, body)

    def _check_receipt(self, answer: bytes, game: bytes, body: bytes) -> SignedReceipt:
        signed = structs.decode(SignedReceipt, answer, "receipt")
        try:
            verify_receipt(signed, self.service)
        except SignatureError as error:
            raise ServiceFaultError(error.message, where="receipt") from error
        if signed.receipt.game != game or signed.receipt.digest != compute_body_digest(body):
            raise ServiceFaultError("is for something else", where="receipt")
        return signed

    def genesis(self, game: bytes) -> Genesis:
        """The genesis of a game, which is what its id says."""
        data = self._request("GET", f"/v1/games/{game.hex()}/genesis")
        genesis = structs.decode(Genesis, data, "genesis")
        if compute_game_id(genesis) != game:
            raise ServiceFaultError("is of another game", where="genesis")
        return genesis

    def document(self, game: bytes, name: str) -> bytes:
        """The canonical ``task`` or ``graph`` that the game was opened with, unchecked."""
        return self._request("GET", f"/v1/games/{game.hex()}/{name}")

    def view(self, game: bytes) -> dict[str, Any]:
        """A game for people, on the service's word."""
        return _read_json(self._request("GET", f"/v1/games/{game.hex()}"))

    def state(self, game: bytes) -> Game:
        """A game's state, on the service's word."""
        return structs.decode(Game, self._request("GET", f"/v1/games/{game.hex()}/state"), "state")

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
        data = self._request("GET", path, params={"after": after, "wait": wait})
        return structs.decode(Page, data, "transcript")

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, float] | None = None,
    ) -> bytes:
        import httpx

        where = self._address + path
        headers = {**(headers or {}), **({} if body is None else {"Content-Type": CBOR})}
        wait = (params or {}).get("wait", 0)
        timeout = httpx.Timeout(self._timeout, read=self._timeout + wait)
        trouble: BusyError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._pause(0.1 * 2**attempt)
            try:
                with self._http.stream(
                    method, path, content=body, headers=headers, params=params, timeout=timeout
                ) as response:
                    data = _read(response)
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

    The game's time is the service's word, within what its receipts bind it to.  SignatureError when
    the solver's claim is not signed.  ``hear`` is told each event that is new, with the game after
    it.
    """

    def __init__(
        self,
        client: DisputeClient,
        game: bytes,
        *,
        hear: Callable[[Game, Event], None] = lambda game, event: None,
    ) -> None:
        self._client, self.id, self._hear = client, game, hear
        self.game = start(client.genesis(game))
        self._chain = Chain(game, client.service)
        self.events: list[Event] = []
        """All events so far."""

    def poll(self, wait: float = 0) -> list[Receipt]:
        """Take in what is new, waiting up to ``wait`` seconds for something.

        ServiceFaultError when the service contradicts its receipts or the rules: they are the
        proof of it.
        """
        new: list[Receipt] = []
        more = True
        while more:
            page = self._client.transcript(self.id, self._chain.sequence, wait)
            new.extend(self._take(event) for event in page.events)
            more, wait = bool(page.more) and bool(page.events), 0
            if page.now > self.game.now:
                self.game = advance(self.game, page.now)
        return new

    def _take(self, event: Event) -> Receipt:
        receipt = self._chain.extend(event)
        where = f"event {receipt.sequence}"
        try:
            for entry in to_moves([event]):
                self.game = make(self.game, entry, where)
        except (EncodingError, MoveRefusedError) as error:
            raise ServiceFaultError(f"accepted against the rules: {error}", where=where) from error
        if receipt.kind == "opened" and event.body != structs.encode(self.game.genesis):
            raise ServiceFaultError("is another genesis", where=where)
        if receipt.kind == "verdict":
            verdict = find_verdict(self.game)
            if verdict is None or structs.encode(verdict) != event.body:
                raise ServiceFaultError("is not the verdict that the moves lead to", where=where)
        self.events.append(event)
        self._hear(self.game, event)
        return receipt


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
    progress: Callable[[Game, str], None] = lambda game, what: None,
) -> Verdict:
    """Follow a game to its verdict, also when the service is away for a time."""
    while (verdict := find_verdict(follower.game)) is None:
        try:
            follower.poll(wait)
        except BusyError as error:
            progress(follower.game, f"no answer: {error}")
            time.sleep(_RETRY)
    return verdict


def play(
    follower: Follower,
    client: DisputeClient,
    player: Player,
    *,
    wait: float = 20.0,
    progress: Callable[[Game, str], None] = lambda game, what: None,
) -> Verdict:
    """Make every move that ``player`` owes, until there is a verdict.

    A move that is refused was overtaken by another's, or is not possible now; whatever is still
    owed is tried again, also when the service is away.  ServiceFaultError and SignatureError end
    it: the service cannot be relied on.  ``progress`` is told what goes wrong; ``Follower`` tells
    of the events.
    """
    pause = 0.0
    while True:
        try:
            follower.poll(pause)
        except BusyError as error:
            progress(follower.game, f"no answer: {error}")
            time.sleep(_RETRY)
            continue
        verdict = find_verdict(follower.game)
        if verdict is not None:
            return verdict
        sent, away = 0, False
        for signed in player.moves(follower.game):
            try:
                client.move(signed)
                sent += 1
            except (ServiceFaultError, SignatureError):
                raise
            except VtrainError as error:
                away |= isinstance(error, BusyError)
                progress(follower.game, f"refused: {error}")
        idle = _RETRY if away else min(wait, _until_deadline(follower.game))
        pause = 0.0 if sent else idle


def _until_deadline(game: Game) -> float:
    """Seconds until time alone may change what is owed: that is no event, and nobody is woken."""
    due = find_deadline(game)
    return _LEAST_WAIT if due is None else max((due[0] - game.now) / 1000, _LEAST_WAIT)


def _read(response: httpx.Response) -> bytes:
    """The answer's body, no longer than anything that a service has to say."""
    data = bytearray()
    for part in response.iter_bytes():
        data += part
        if len(data) > LIMITS.service_answer_bytes:
            most = LIMITS.service_answer_bytes
            raise ServiceFaultError(f"answers with over {most} bytes", where="answer")
    return bytes(data)


def _read_json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ServiceFaultError("does not answer in JSON", where="answer") from error
    if not isinstance(found, dict):
        raise ServiceFaultError("does not answer with an object", where="answer")
    return found


def _find_problem(status: int, data: bytes, where: str) -> VtrainError:
    try:
        return from_problem(_read_json(data))
    except ServiceFaultError:
        return ServiceFaultError(f"answers with {status}", where=where)
