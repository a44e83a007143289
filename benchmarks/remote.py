"""What an audit over HTTP fetches of a run of 10 GB, and what the report of a long run takes.

The run is of an MLP of 0.7M weights with a checkpoint of 5.4 MB after each of 1,870 steps, all of
them done and signed for.  So that 10 GB need not lie anywhere, the store is given the checkpoint
that the draw asks for after the draw, by doing the steps up to it again: an auditor sees no
difference.
"""

from __future__ import annotations

import math
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from _harness import ROOT, Result, ask_process, at_most, main
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import public_key
from vtrain.audit.pin import make_pin
from vtrain.audit.plan import REPLAY_DOMAIN, draw
from vtrain.audit.published import open_published
from vtrain.audit.verify import verify
from vtrain.commit.checkpoint import compute_checkpoint_size
from vtrain.commit.log import RunLog, encode_log
from vtrain.commit.store import FolderStore
from vtrain.engines.registry import open_session
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import compute_row_length
from vtrain.train.publish import make_samples_form, write_samples, write_state
from vtrain.train.task import CompiledTask, load_task
from vtrain.wire.claim import Claim, encode_signed_claim
from vtrain.wire.graph import encode_graph
from vtrain.wire.task import encode_task

OVER_LIMIT = 1.10
REPORT_SECONDS, REPORT_BYTES = 2.0, 50e6
STEPS, QUICK_STEPS = 1870, 50
REPORT = """
import json, time, tracemalloc
from datetime import UTC, datetime
from vtrain.audit.structure import Evidence
from vtrain.audit.plan import Segments, draw_randomness
from vtrain.audit.verify import make_report
from vtrain.report.document import encode_document, make_document
from vtrain.report.html import render_html
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord
from vtrain.wire.report import Check, Strength
from vtrain.wire.claim import Claim, SignedClaim

steps = {steps}
records = tuple(StepRecord(t, bytes(32), t * 37 % 65536, bytes(32)) for t in range(1, steps + 1))
claim = SignedClaim(Claim(bytes(32), bytes(32), bytes(32), steps, bytes(32)), bytes(64))
cut = Segments(steps, 100)
evidence = Evidence(
    None, bytes(32), claim, StepGraph(()), None, records, cut, frozenset(),
    (Check("log", "passed", "as signed"),), (),
)
looked = [(100 * i + 1, 100 * i + 100) for i in range(0, cut.count, 10)]

def make():
    report = make_report(
        evidence, evidence.checks, Strength((), ()), engine="cpu", population=cut,
        looked_at=looked, randomness=draw_randomness(),
    )
    document = make_document(report, datetime.now(UTC), "0", "law")
    return len(encode_document(document)) + len(render_html(document))

since = time.perf_counter()
size = make()
seconds = time.perf_counter() - since
tracemalloc.start()
make()
print(json.dumps({{"seconds": seconds, "bytes": tracemalloc.get_traced_memory()[1], "size": size}}))
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of a web server of a folder, with ranges."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = folder / self.path.lstrip("/")
            data = path.read_bytes() if path.is_file() else b""
            status, span = (200 if path.is_file() else 404), self.headers.get("Range")
            if span and status == 200:
                first, last = map(int, span.removeprefix("bytes=").split("-"))
                status, where = 206, f"bytes {first}-{last}/{len(data)}"
                data = data[first : last + 1]
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", where)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def compile_run(quick: bool) -> CompiledTask:
    """The task, with a checkpoint after each step."""
    from _models import compile_variant, load_make_models

    file = load_task(ROOT / "examples" / "mnist" / "mlp.toml")
    model = load_make_models().make_model("wide", 0)
    changes = {
        "steps": QUICK_STEPS if quick else STEPS,
        "batch": 16,
        "commit_every": 1,
        "checkpoint_every": 1,
    }
    _, task = compile_variant(replace(file, calibration_steps=5), model, **changes)
    return task


def measure_fetched(quick: bool) -> Result:
    """Bytes of an audit of one segment, over those of what it is about."""
    task, key = compile_run(quick), Ed25519PrivateKey.generate()
    session = open_session("auto", task.graph, task.samples)
    session.load_state(task.initial_state)
    log, steps = RunLog(), task.spec.steps
    for _ in range(steps):
        log.append(session.step())
    task_id = compute_task_id(task.spec)
    claim = Claim(secrets.token_bytes(32), public_key(key), task_id, steps, log.root())
    signed = sign_claim(claim, key)
    seed, digest = secrets.token_bytes(32), compute_claim_digest(claim)
    (segment,) = draw(seed, digest, REPLAY_DOMAIN, steps, 1)
    with tempfile.TemporaryDirectory() as name:
        sink = FolderStore(Path(name))
        files = {
            "claim.cbor": encode_signed_claim(signed),
            "task.cbor": encode_task(task.spec),
            "graph.cbor": encode_graph(task.graph),
            "log.bin": encode_log(log.records),
        }
        for file, data in files.items():
            sink.put(file, data)
        form = make_samples_form(task.spec.data)
        write_samples(sink, task.samples, form, lambda what, done, total: None)
        session.load_state(task.initial_state)
        for _ in range(segment):
            session.step()
        write_state(sink, task.graph, session.read_state(), set())
        with serving(Path(name)) as url, open_published(url) as published:
            since = time.perf_counter()
            report = verify(
                published.root, samples=1, seed=seed, pin=make_pin(signed), published=published
            )
            seconds = time.perf_counter() - since
            traffic = published.source.traffic
    assert report.verdict == "verified", report.reason
    state, batch = compute_checkpoint_size(task.graph), task.spec.batch
    path = 32 * math.ceil(math.log2(task.spec.data.samples))
    due = (
        sum(map(len, files.values())) + state + batch * (compute_row_length(task.spec.data) + path)
    )
    figures = {
        "checkpoints of the run, bytes": steps * state,
        "fetched, bytes": traffic.bytes,
        "requests": traffic.requests,
        "claim, task, graph, log, checkpoint, samples and their paths, bytes": due,
        "audit, s": seconds,
    }
    over = traffic.bytes / due
    return Result(figures, {"fetched over what it is about": at_most(over, OVER_LIMIT)})


def measure_report(quick: bool) -> Result:
    """Time and memory of the report of a long run."""
    steps = 10_000 if quick else 100_000
    found = ask_process(REPORT.format(steps=steps))
    figures = {f"report of {steps} steps, bytes of JSON and page": found["size"]}
    targets = {
        f"report of {steps} steps, s": at_most(found["seconds"], REPORT_SECONDS),
        f"report of {steps} steps, bytes of memory": at_most(found["bytes"], REPORT_BYTES),
    }
    return Result(figures, targets)


def measure(quick: bool) -> Result:
    """Both."""
    return measure_fetched(quick).join(measure_report(quick))


if __name__ == "__main__":
    main("remote", measure)
