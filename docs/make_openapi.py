"""Write docs/openapi.json from the service: ``python docs/make_openapi.py``.  A test compares."""

from __future__ import annotations

import json
from pathlib import Path

from vtrain.dispute.service.app import make_app


def render() -> str:
    """The whole file."""
    return json.dumps(make_app().openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "openapi.json").write_text(render())
