"""docs/openapi.json is what the service says, and the service does what it says, fuzzed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.dispute.service.live import TOKEN, serving
from tests.dispute.service.logs import (
    HONEST,
    SERVICE_KEY,
    make_bond,
    make_log,
    make_log_genesis,
    make_opening,
)
from vtrain.dispute.service.app import make_app
from vtrain.dispute.state import compute_game_id
from vtrain.wire import structs

ROOT = Path(__file__).resolve().parents[3]


@schemathesis.serializer("application/cbor")
def serialize(_context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


schema = schemathesis.openapi.from_dict(make_app().openapi())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    db = tmp_path_factory.mktemp("schema") / "games.db"
    with serving(f"sqlite:///{db}", SERVICE_KEY) as url:
        headers = {"Content-Type": "application/cbor"}
        opening = make_opening(make_log_genesis())
        httpx.post(f"{url}/v1/games", content=opening, headers=headers).raise_for_status()
        yield url


def test_openapi_file_is_up_to_date() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_openapi", ROOT / "docs/make_openapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/openapi.json").read_text() == module.render(), "run make_openapi.py"


@schema.parametrize()
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
def test_the_service_keeps_its_schema(case: schemathesis.Case[Any], base: str) -> None:
    if "wait" in (case.query or {}):
        case.query["wait"] = 0
    case.headers["Authorization"] = f"Bearer {TOKEN}"
    response = case.call(base_url=base)
    case.validate_response(
        response,
        excluded_checks=[
            # The schema of a binary body takes any bytes; the service takes canonical CBOR.
            positive_data_acceptance,
        ],
    )


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client() as found:
        yield found


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    genesis = make_log_genesis()
    bond = make_bond(compute_game_id(genesis), make_log().root, HONEST)
    return {
        "/v1/games": make_opening(make_log_genesis(1)),
        f"/v1/games/{bond.game.hex()}/moves": structs.encode(bond),
    }


@pytest.mark.parametrize("which", [0, 1])
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=75, derandomize=True)
def test_spoiled_bodies(
    base: str, client: httpx.Client, bodies: dict[str, bytes], which: int, data: st.DataObject
) -> None:
    """Bits flipped, bytes cut out or put in: always a problem of the sender's, with our code."""
    path, body = list(bodies.items())[which]
    spoiled = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "put", "end"])):
            case "flip":
                spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del spoiled[at : at + data.draw(st.integers(1, 40))]
            case "put":
                spoiled[at:at] = data.draw(st.binary(min_size=1, max_size=40))
            case _:
                del spoiled[at:]
        if not spoiled:
            spoiled = bytearray(b"\0")
    hypothesis.assume(bytes(spoiled) != body)
    headers = {"Content-Type": "application/cbor"}
    response = client.post(base + path, content=bytes(spoiled), headers=headers)
    assert 400 <= response.status_code < 500, response.text
    assert response.json()["code"] in {
        *("encoding", "signature", "move-refused", "run", "graph", "range", "task", "terms"),
    }
