"""The HTTP API of a :class:`vtrain.dispute.service.games.GameService` (docs/service.md).

What is signed travels as canonical CBOR, in both directions; JSON is for looking on.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from vtrain import __version__
from vtrain.dispute.market import Notice
from vtrain.dispute.problems import (
    MEDIA_TYPE,
    BusyError,
    ForbiddenError,
    NotFoundError,
    RequestError,
    TooLargeError,
    to_problem,
)
from vtrain.dispute.service import views
from vtrain.dispute.service.admission import Buckets, Budget, Turns, group_address
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.ledger import Ledger
from vtrain.dispute.service.protocol import CONNECTION
from vtrain.dispute.service.webhooks import Courier
from vtrain.errors import VtrainError
from vtrain.printable import make_printable
from vtrain.wire import structs

CBOR: Final = "application/cbor"
_LOG: Final = logging.getLogger("vtrain.dispute")
_MAX_COUNT: Final = 2**62
_HEADERS: Final = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Bell:
    """Wakes the requests that wait for events of a game; lives in one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def open(self) -> None:
        """Belong to the running loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Wake everybody, for good."""
        self.closed = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    def heard(self, notices: Sequence[Notice]) -> None:
        """Events are stored; called from the writer's thread."""
        if self._loop is not None:
            # A loop that is closed has nobody waiting.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ring, {notice.game for notice in notices})

    def _ring(self, games: set[bytes]) -> None:
        for game in games:
            for event in self._waiting.get(game, ()):
                event.set()

    @asynccontextmanager
    async def listening(self, game: bytes) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever something happens in ``game``."""
        event = asyncio.Event()
        self._waiting.setdefault(game, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[game].discard(event)
            if not self._waiting[game]:
                del self._waiting[game]


@dataclass
class Parts:
    """What the handlers work with; ``token`` is the operator's, empty when there is none.

    What a handler asks of the service runs in the threads of one of the pools, so that no kind of
    request takes the threads of another; ``Turns`` give each address, or party, its share of them.
    """

    service: GameService
    courier: Courier
    ledger: Ledger | None
    token: str

    def __post_init__(self) -> None:
        limits = self.service.limits
        self.bell = Bell()
        self.bodies = Budget(limits.bodies, limits.bodies_each)
        self.rate = Buckets(limits.opening_burst, limits.opening_seconds, time.monotonic)
        self.openers = _Lane("opener", 1, Turns(1, limits.openings_each))
        self.strangers = _Lane("stranger", 2, Turns(limits.strangers, limits.waiting))
        self.backers = _Lane("backer", 4, Turns(limits.backers, limits.waiting))
        self.readers = _Lane("reader", limits.readers, Turns(limits.readers, limits.waiting))
        self.beater = ThreadPoolExecutor(1, "vtrain-beat")

    def close(self) -> None:
        """End the threads."""
        for lane in (self.openers, self.strangers, self.backers, self.readers):
            lane.pool.shutdown(wait=False, cancel_futures=True)
        self.beater.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """Threads for one kind of request, and whose turn it is."""

    def __init__(self, name: str, threads: int, turns: Turns) -> None:
        self.pool, self.turns = ThreadPoolExecutor(threads, f"vtrain-{name}"), turns

    async def call(self, key: Hashable, function: Callable[..., T], *arguments: Any) -> T:
        """Call it once it is the turn of ``key``."""
        async with self.turns.turn(key):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.pool, function, *arguments)

    async def submit(self, key: Hashable, function: Callable[..., Future[T]], *arguments: Any) -> T:
        """Call what begins something, and hold the turn until that is done."""
        async with self.turns.turn(key):
            loop = asyncio.get_running_loop()
            future = await loop.run_in_executor(self.pool, function, *arguments)
            return await asyncio.wrap_future(future)


async def _parts(request: Request) -> Parts:  # not async, it would run in a thread
    parts = request.app.state.parts
    if not isinstance(parts, Parts):
        raise BusyError("the service is starting", where="service")
    return parts


PartsOf = Annotated[Parts, Depends(_parts)]
GameId = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Game id in hexadecimal.")]
After = Annotated[int, Query(ge=0, le=_MAX_COUNT, description="Only what is after this number.")]
Limit = Annotated[int, Query(ge=1, le=256, description="At most so many.")]
Wait = Annotated[
    float,
    Query(ge=0, le=30, allow_inf_nan=False, description="Seconds to wait when there is nothing."),
]

_PROBLEM: Final[dict[str, Any]] = {
    "description": "A problem (RFC 9457).",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_BYTES: Final = {CBOR: {"schema": {"type": "string", "format": "binary"}}}


def _cbor(description: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": description, "content": _BYTES}}


def _takes(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


router = APIRouter(prefix="/v1", responses={"4XX": _PROBLEM, "5XX": _PROBLEM})


@router.get("/info", summary="The service's key, time and limits")
async def info(parts: PartsOf) -> views.InfoView:
    """Receipts are by this key; whoever plays knows it from elsewhere."""
    return views.show_info(parts.service.info())


@router.post(
    "/games",
    summary="Open a game",
    status_code=201,
    response_class=Response,
    responses={
        **_cbor("The game was open already: its first receipt."),
        **_cbor("The game is open: its first receipt.", 201),
    },
    openapi_extra={
        **_takes(_BYTES),
        "parameters": [
            {
                "in": "header",
                "name": "Idempotency-Key",
                "required": False,
                "schema": {"type": "string", "maxLength": 255},
            }
        ],
    },
)
async def open_game(request: Request, parts: PartsOf) -> Response:
    """Body: canonical CBOR of {genesis, task, graph}."""
    key = request.headers.get("idempotency-key", "")
    if len(key) > 255:
        raise RequestError("has more than 255 characters", where="Idempotency-Key")
    # Only a body that is there waits for its turn: one that does not come holds up nobody.
    async with _body(request, parts, parts.service.limits.opening, CBOR) as body:
        address = _get_address(request)
        parts.rate.take(address)
        signed, new = await parts.openers.call(address, parts.service.open_game, body, key)
    return Response(
        structs.encode(signed),
        201 if new else 200,
        {"Location": f"/v1/games/{signed.receipt.game.hex()}"},
        CBOR,
    )


@router.get("/games", summary="List games")
async def list_games(
    request: Request, parts: PartsOf, after: After = 0, limit: Limit = 100
) -> views.GameList:
    """In the order in which they were opened."""
    found = await _read(request, parts, parts.service.list_games, after, limit)
    return views.GameList(
        games=[
            views.GameLine(number=number, game=game.hex(), over=over)
            for number, game, over in found
        ]
    )


@router.get("/games/{game}", summary="A game, for people")
async def show_game(request: Request, parts: PartsOf, game: GameId) -> views.GameView:
    """Its state at its time now; whoever does not take the service's word replays it."""
    return await _read(request, parts, _show_game, parts.service, bytes.fromhex(game))


def _add_document(name: str, description: str) -> None:
    @router.get(
        f"/games/{{game}}/{name}",
        summary=f"A game's {name}",
        response_class=Response,
        responses=_cbor(description),
        operation_id=f"get_{name}",
    )
    async def get_document(request: Request, parts: PartsOf, game: GameId) -> Response:
        found = parts.service.document
        data = await _read(request, parts, found, bytes.fromhex(game), name)
        return Response(data, media_type=CBOR)


_add_document("genesis", "Canonical encoding of the genesis; the game id is its hash.")
_add_document("task", "The canonical task (task.cbor).")
_add_document("graph", "The canonical step graph (graph.cbor).")


@router.post(
    "/games/{game}/moves",
    summary="Make a move",
    response_class=Response,
    responses=_cbor("The receipt; the same for the same bytes."),
    openapi_extra=_takes(_BYTES),
)
async def make_move(request: Request, parts: PartsOf, game: GameId) -> Response:
    """Body: canonical CBOR of a SignedMove.  A bond joins the game.

    May be sent again at any time: the same bytes take effect once and give the first receipt.
    """
    service, address = parts.service, _get_address(request)
    async with _body(request, parts, service.limits.move, CBOR) as body:
        offer = service.read_move(bytes.fromhex(game), body)
        key: Hashable = address
        lane, backed = parts.strangers, service.is_backed(offer)
        if backed:
            lane, key = parts.backers, (address, offer.signed.party)
        signed = await lane.submit(key, service.submit, offer)
    if backed and (connection := getattr(request.state, CONNECTION, None)) is not None:
        connection.trusted = True
    return Response(structs.encode(signed), media_type=CBOR)


@router.get(
    "/games/{game}/transcript",
    summary="A game's events with their bodies and receipts",
    response_class=Response,
    responses=_cbor("Canonical encoding of a page: events, the game's time, and whether more."),
)
async def get_transcript(
    request: Request,
    parts: PartsOf,
    game: GameId,
    after: After = 0,
    limit: Limit = 100,
    wait: Wait = 0,
) -> Response:
    """Anyone replays it to the same verdict."""
    found, data = await _get_page(request, parts, bytes.fromhex(game), after, limit)
    if not found and wait > 0:
        await _wait_for(request, parts, bytes.fromhex(game), after, wait)
        found, data = await _get_page(request, parts, bytes.fromhex(game), after, limit)
    return Response(data, media_type=CBOR)


@router.get("/games/{game}/events", summary="What happened after a cursor")
async def list_events(
    request: Request,
    parts: PartsOf,
    game: GameId,
    after: After = 0,
    limit: Limit = 100,
    wait: Wait = 0,
) -> views.EventList:
    """The cursor is the sequence of the last event known; ``wait`` has the answer wait for one."""
    await _wait_for(request, parts, bytes.fromhex(game), after, wait)
    page = await _read(request, parts, parts.service.page, bytes.fromhex(game), after, limit)
    return views.EventList(
        now=page.time.time.at,
        more=bool(page.more),
        events=[views.show_event(event) for event in page.events],
    )


@router.get(
    "/games/{game}/verdict",
    summary="A game's verdict",
    response_class=Response,
    responses=_cbor("Canonical encoding of the event: the verdict and the receipt for it."),
)
async def get_verdict(request: Request, parts: PartsOf, game: GameId) -> Response:
    """Not found while the game goes on."""
    _, event = await _read(request, parts, parts.service.verdict, bytes.fromhex(game))
    return Response(structs.encode(event), media_type=CBOR)


_OPERATOR: Final[list[dict[str, list[str]]]] = [{"operator": []}]


@router.post(
    "/webhooks",
    summary="Add a webhook (operator)",
    status_code=201,
    openapi_extra={
        **_takes({"application/json": {"schema": {"$ref": "#/components/schemas/HookRequest"}}}),
        "security": _OPERATOR,
    },
)
async def add_hook(request: Request, parts: PartsOf) -> views.NewHookView:
    """Its secret, with which its requests are signed, is shown this once."""
    _check_operator(request, parts)
    wanted = await _read_json(request, parts, views.HookRequest)
    add = parts.courier.add_hook
    hook = await _read(request, parts, add, wanted.url, bytes.fromhex(wanted.game))
    return views.show_new_hook(hook)


@router.get("/webhooks", summary="List webhooks (operator)", openapi_extra={"security": _OPERATOR})
async def list_hooks(request: Request, parts: PartsOf) -> views.HookList:
    """Without their secrets."""
    _check_operator(request, parts)
    hooks = await _read(request, parts, parts.courier.list_hooks)
    return views.HookList(webhooks=[views.show_hook(hook) for hook in hooks])


@router.delete(
    "/webhooks/{webhook}",
    summary="Remove a webhook (operator)",
    status_code=204,
    response_class=Response,
    openapi_extra={"security": _OPERATOR},
)
async def remove_hook(
    request: Request, parts: PartsOf, webhook: Annotated[int, Path(ge=1, le=_MAX_COUNT)]
) -> Response:
    """What is on its way may still arrive."""
    _check_operator(request, parts)
    await _read(request, parts, parts.courier.remove_hook, webhook)
    return Response(status_code=204)


@router.post(
    "/deposits",
    summary="Enter what a party has deposited or is paid out (operator)",
    openapi_extra={
        **_takes({"application/json": {"schema": {"$ref": "#/components/schemas/DepositRequest"}}}),
        "security": _OPERATOR,
    },
)
async def add_deposit(request: Request, parts: PartsOf) -> views.DepositView:
    """What is locked in games cannot be paid out."""
    _check_operator(request, parts)
    ledger = _get_ledger(parts)
    wanted = await _read_json(request, parts, views.DepositRequest)
    party = bytes.fromhex(wanted.party)
    enter = functools.partial(ledger.enter, party, wanted.amount, wanted.reference)
    return views.show_deposit(party, await _read(request, parts, enter))


@router.get(
    "/deposits/{party}",
    summary="What a party has (operator)",
    openapi_extra={"security": _OPERATOR},
)
async def get_deposit(
    request: Request,
    parts: PartsOf,
    party: Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="A key in hexadecimal.")],
) -> views.DepositView:
    """Free, and locked in games."""
    _check_operator(request, parts)
    key, ledger = bytes.fromhex(party), _get_ledger(parts)
    return views.show_deposit(key, await _read(request, parts, ledger.find, key))


def make_app() -> FastAPI:
    """The API without a service behind it, as docs/openapi.json describes it."""
    app = FastAPI(
        title="vtrain dispute service",
        version=__version__.partition("+")[0],
        description="Hosts disputes about training runs; docs/service.md says what it promises.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_live,
    )
    app.state.parts = None
    app.include_router(router)
    app.add_exception_handler(VtrainError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(Exception, _answer_defect)
    app.openapi = functools.partial(_describe_api, app, app.openapi)  # type: ignore[method-assign]
    return app


def create_app(
    service: GameService, courier: Courier, token: str = "", ledger: Ledger | None = None
) -> FastAPI:
    """The API of ``service``; what is the operator's needs the ``token``: none means nobody's."""
    app = make_app()
    parts = Parts(service, courier, ledger, token)
    service.listen(parts.bell.heard)
    app.state.parts = parts
    app.add_middleware(Shortcut, parts=parts)
    return app


_HOT: Final = re.compile("/v1/games/([0-9a-f]{64})/(moves|transcript)")
_CURSOR: Final = re.compile(
    rb"(?:(after)=(\d{1,18})|(limit)=(\d{1,3})|(wait)=(\d{1,2}(?:\.\d{1,9})?))"
)


class Shortcut:
    """Answers moves and pages, which are nearly all requests, without FastAPI's way to a handler.

    That way costs as much as all that the service does for a page.  The handlers are the same;
    whatever is not plainly one of these requests goes that way.
    """

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        answer = self._find(scope, receive) if scope["type"] == "http" else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await answer
        except VtrainError as error:
            response = await _answer_error(Request(scope, receive), error)
        await response(scope, receive, send)

    def _find(self, scope: Scope, receive: Receive) -> Coroutine[Any, Any, Response] | None:
        found = _HOT.fullmatch(scope["path"])
        if found is None:
            return None
        game, what = found.groups()
        asked = (scope["method"], what)
        if asked == ("POST", "moves"):
            return make_move(Request(scope, receive), self._parts, game)
        cursor = _read_cursor(scope["query_string"])
        if asked != ("GET", "transcript") or cursor is None:
            return None
        return get_transcript(Request(scope, receive), self._parts, game, *cursor)


def _read_cursor(query: bytes) -> tuple[int, int, float] | None:
    """After, limit and wait of a plain query; None for any other, which FastAPI judges."""
    after, limit, wait = 0, 100, 0.0
    for part in query.split(b"&") if query else ():
        found = _CURSOR.fullmatch(part)
        if found is None:
            return None
        if found[1]:
            after = int(found[2])
        elif found[3]:
            limit = int(found[4])
        else:
            wait = float(found[6])
    return (after, limit, wait) if 1 <= limit <= 256 and wait <= 30 else None


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    parts = app.state.parts
    parts.bell.open()
    beating = asyncio.create_task(_beat(parts))
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        parts.close()


async def _beat(parts: Parts) -> None:
    """Let the players' time run while there is a service to move at."""
    loop = asyncio.get_running_loop()
    while True:
        # Whatever goes wrong in a beat, the next one comes.
        beat = loop.run_in_executor(parts.beater, parts.service.beat)
        (trouble,) = await asyncio.gather(beat, return_exceptions=True)
        if trouble is not None:
            _LOG.warning("a heartbeat failed", exc_info=trouble)
        await asyncio.sleep(parts.service.limits.beat / 1000)


def _describe_api(app: FastAPI, generate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The schema with what FastAPI does not know of: bodies that are read by hand."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    schema = generate()
    parts = schema.setdefault("components", {})
    shapes = parts.setdefault("schemas", {})
    for model in (views.Problem, views.HookRequest, views.DepositRequest):
        shapes[model.__name__] = model.model_json_schema()
    parts["securitySchemes"] = {"operator": {"type": "http", "scheme": "bearer"}}
    for path in schema["paths"].values():
        for operation in path.values():
            # Every problem has one form: the validation errors of FastAPI are not ours.
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        shapes.pop(name, None)
    app.openapi_schema = schema
    return schema


# --- what the handlers share


def _get_address(request: Request) -> str:
    return group_address(request.client.host if request.client else "")


async def _read(request: Request, parts: Parts, function: Callable[..., T], *arguments: Any) -> T:
    """Call what asks the database."""
    return await parts.readers.call(_get_address(request), function, *arguments)


async def _get_page(
    request: Request, parts: Parts, game: bytes, after: int, limit: int
) -> tuple[int, bytes]:
    """How many events a page has, and its encoding."""
    if parts.service.is_at_hand(game, after):
        return parts.service.encode_page(game, after, limit)
    return await _read(request, parts, parts.service.encode_page, game, after, limit)


def _show_game(service: GameService, game_id: bytes) -> views.GameView:
    return views.show_game(service.state(game_id), service.load(game_id))


@asynccontextmanager
async def _body(
    request: Request, parts: Parts, limit: int, media_type: str
) -> AsyncIterator[bytes]:
    """The body of a request, counted among those of its address while it is worked on."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        raise RequestError(f"must be {media_type}", where="Content-Type")
    # By the announced length, before a byte of the body is read.
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() and len(length) < 20 else 0
    if announced > limit or len(length) >= 20:
        raise TooLargeError(f"has {length} bytes, over the limit of {limit}", where="body")
    with parts.bodies.account(_get_address(request)) as take:
        take(announced)
        received: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(parts.service.limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise TooLargeError(f"is over the limit of {limit} bytes", where="body")
                    if size > announced:
                        take(len(part))
                    received.append(part)
        except TimeoutError:
            raise RequestError("did not arrive in time", where="body") from None
        except ClientDisconnect:  # a defect of nobody's, which would be logged as one
            raise RequestError("did not arrive", where="body") from None
        yield b"".join(received)


async def _read_json(request: Request, parts: Parts, model: type[M]) -> M:
    async with _body(request, parts, parts.service.limits.other, "application/json") as body:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise RequestError(_describe(error.errors()), where="body") from error


async def _wait_for(request: Request, parts: Parts, game: bytes, after: int, wait: float) -> None:
    """Until the game has an event after ``after``, or ``wait`` seconds have passed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + min(wait, parts.service.limits.wait_seconds)
    async with parts.bell.listening(game) as event:
        while True:
            loaded = parts.service.find_loaded(game)
            if loaded is None:
                loaded = await _read(request, parts, parts.service.load, game)
            left = until - loop.time()
            if loaded.sequence > after or left <= 0 or parts.bell.closed:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), left)
            event.clear()


def _get_ledger(parts: Parts) -> Ledger:
    if parts.ledger is None:
        raise NotFoundError("this service keeps no deposits", where="deposits")
    return parts.ledger


def _check_operator(request: Request, parts: Parts) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not parts.token or not hmac.compare_digest(given.encode(), parts.token.encode()):
        raise ForbiddenError("needs the operator's token", where="Authorization")


def _describe(errors: Sequence[Any]) -> str:
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


async def _answer_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, VtrainError):
        raise error
    problem = to_problem(error)
    headers = _HEADERS.get(problem["status"], {})
    if problem["status"] >= 500:
        asked = make_printable(f"{request.method} {request.url.path}: {error}")
        _LOG.warning("%s", asked)
    return JSONResponse(problem, problem["status"], headers, MEDIA_TYPE)


async def _answer_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        return await _answer_error(request, NotFoundError("there is no such page", where="path"))
    problem = to_problem(RequestError(str(error.detail), where="request"), error.status_code)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # Starlette names the methods of the first route of this path alone.
        headers["Allow"] = ", ".join(_find_methods(request))
    return JSONResponse(problem, error.status_code, headers, MEDIA_TYPE)


def _find_methods(request: Request) -> list[str]:
    """All methods of the requested path."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    found = [route.methods for route in routes if route.matches(request.scope)[0] != Match.NONE]
    return sorted({method for methods in found for method in methods or ()})


async def _answer_invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return await _answer_error(request, RequestError(_describe(error.errors()), where="request"))


async def _answer_defect(request: Request, _error: Exception) -> Response:
    # Starlette logs the traceback; nobody outside is told more than that.
    problem = to_problem(VtrainError("an internal failure, which is logged"), 500)
    return JSONResponse(problem, 500, media_type=MEDIA_TYPE)
