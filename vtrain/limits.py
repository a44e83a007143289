"""What strangers may make us read, hold, show and start: every such bound, in one place.

A run, a task, a proof, a statement, an answer of a service: whoever made it may be hostile, and
what is over a bound here is refused before it costs anything, by an error that names both numbers.

How these relate to the bounds in ``vtrain.wire`` and ``vtrain.ops``: those are *law*, stated in
docs/format.md, the same for every reader, and what goes beyond them is no document of that format
(the length of a name, the rank and the elements of a tensor, the items of a list, the bytes of a
move).  They stay where the format is defined.  The bounds here are *one reader's*: two machines may
differ in them, and no verdict about a party ever rests on one.  What a service takes on for its
clients is in ``vtrain.dispute.service.limits``, which its operator may change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes, unless a name or a comment says otherwise."""

    # --- a run directory

    claim_bytes: int = 1 << 12
    """A claim has some 300."""
    task_bytes: int = 1 << 20
    graph_bytes: int = 64 << 20
    """The decoder's own limit: some 10^5 nodes."""
    manifest_bytes: int = 1 << 23
    """Enough for 50,000 checkpoints; JSON takes up to 80 times its size in memory."""
    model_bytes: int = 1 << 31
    """Protobuf itself ends there.  An audit hashes a model block by block."""
    samples_bytes: int = 1 << 36
    """A sample table, of a run or as made from the data of a task file."""
    held_samples_bytes: int = 1 << 30
    """A table up to this size is held in memory, a larger one in a temporary file of our own."""
    log_bytes: int = 1 << 30
    """Some seven million steps.  A record takes about 400 bytes of memory while it is held, three
    times its size here."""
    record_bytes: int = 48
    """What a record takes in a log, at least: any that is one has more, with its length..."""
    short_records: int = 1 << 16
    """... but for so many: others can be signed for, and the tree over them takes 64 bytes for each
    of none."""
    state_bytes: int = 1 << 34
    """One checkpoint, which is held in memory."""
    step_bytes: int = 1 << 36
    """All values of one step together: more than any engine holds at once."""
    trace_held_bytes: int = 1 << 32
    """Values of a trace that are held while it is checked, beyond those of one node: what is more
    is read again."""
    entries: int = 100_000
    """Names in a run directory that are looked at."""

    # --- a task file and what it names

    task_file_bytes: int = 1 << 20
    number_characters: int = 100
    """Of a decimal or a fraction; its exponent has at most three digits."""
    onnx_bytes: int = 1 << 30
    """An ONNX file that is parsed; an int32 master weight takes as much as its float32."""
    onnx_nodes: int = 20_000
    """The step graph has some ten nodes for each, and ends at 100,000."""
    onnx_name_bytes: int = 1024
    """Names go into the task, the state leaves and every error message."""
    onnx_elements: int = 1 << 28
    """Elements of one stored tensor, of one sample's value, or of one sample's patches."""
    data_bytes: int = 1 << 36
    """A file of samples, or one array of it, which is held in memory."""
    unpacked_bytes: int = 1 << 31
    """One array unpacked from a compressed file..."""
    unpacked_freely_bytes: int = 1 << 27
    """... of which so much may come from as little as it likes..."""
    unpacked_ratio: int = 50
    """... and beyond that so many bytes from each byte of the file: real samples are packed to a
    tenth or so, and what unpacks to more than this was made to."""
    stored_ratio: int = 50
    """Bytes that one stored byte of a large file may stand for: file systems that compress store
    samples in a tenth or so, what is stored in less than this is holes."""
    key_parts: int = 64
    """Parts of one dotted key: reading it takes time with their square."""
    npy_header_bytes: int = 1 << 16

    # --- proofs

    bundle_bytes: int = 1 << 24
    """One proof with its statement."""
    traces_bytes: int = 1 << 20
    """A signed trace claim."""
    leaves_bytes: int = 1 << 28
    """The digests of a trace: 100,000 nodes in some 80 steps between state roots."""
    answer_bytes: int = 1 << 28
    """All proofs of one answer: they are held in memory, decoded."""
    batches_bytes: int = 1 << 27
    hiding_bytes: int = 1 << 23
    """What a data owner signed of all batches."""
    srs_bytes: int = 4 + (128 << 28) + 256
    """A file for the largest k, 28.  It is read block by block..."""
    srs_held_bytes: int = 1 << 36
    """... but for the points that commitments are made with, 144 bytes each while they are read."""
    key_manifest_bytes: int = 1 << 16
    """What a folder of proving keys says of itself."""
    settings_bytes: int = 16 << 20
    """Settings of a circuit."""
    verifying_key_bytes: int = 1 << 30

    # --- disputes

    statement_bytes: int = 16 << 20
    """A leaf put to the referee."""
    service_answer_bytes: int = 128 << 20
    """An answer of a dispute service; a state of a large game may be long."""

    # --- keys

    key_bytes: int = 4096
    """A PEM of an Ed25519 key has 119."""
    token_bytes: int = 1024
    """An operator's token."""

    # --- beacons, tokens and reports

    beacon_bytes: int = 1 << 16
    """A round of a beacon, or what a chain says of itself."""
    timestamp_bytes: int = 1 << 16
    """An authority's response, with its certificates: some 5000."""
    roots_bytes: int = 1 << 20
    """Certificates that an auditor trusts."""
    report_bytes: int = 1 << 24
    """A report, signed or not, of some 300,000 segments.  It takes up to 40 times its size in
    memory."""

    # --- stores of published runs

    row_bytes: int = 1 << 26
    """One sample of a published table, which is read whole."""
    store_tries: int = 3
    """How often an object is asked for whose store fails in a way that may pass."""
    store_redirects: int = 3
    """How often an answer may name another place."""
    store_connect_seconds: int = 10
    store_grace_seconds: int = 30
    """An answer may take so long..."""
    store_least_rate: int = 1 << 14
    """... and one second more for each so many bytes that it may have."""
    store_total_seconds: int = 600
    """All answers of a store together may take so long, a second more each, and one for so many
    bytes that came."""

    # --- what is shown and started

    text_characters: int = 5000
    """Of one error, one cell or one line shown: strangers choose names and numbers in them.  The
    longest path of a system has some 4096."""
    threads: int = 64
    """Threads asked for, on a machine of up to 16 cores; see :func:`most_threads`.

    At every operator all threads of a pool wake and look for work at each other: beyond the cores
    the cost of a step grows with their square.  A step of the smallest models on two cores took 0.2
    ms with 2 to 32 threads, 0.4 with 64, 0.8 with 128, 26 with 512 and 92 with 999."""

    def by_law(self) -> Limits:
        """These limits for whoever runs a step by the law in numpy, which takes every value as
        int64 and more of them for a while: up to four times what they are stored in."""
        return replace(self, step_bytes=self.step_bytes // 4)

    def within(self, memory: int) -> Limits:
        """These limits, those that cost memory cut down to what a machine of ``memory`` bytes has.

        Up to three states are held at once: the engine's, its copy and the checkpoint.  Protobuf
        holds a model two to three times; an array of samples becomes a table beside it.
        """
        return replace(
            self,
            held_samples_bytes=min(self.held_samples_bytes, memory // 4),
            log_bytes=min(self.log_bytes, memory // 8),
            state_bytes=min(self.state_bytes, memory // 4),
            step_bytes=min(self.step_bytes, memory // 2),
            trace_held_bytes=min(self.trace_held_bytes, memory // 4),
            onnx_bytes=min(self.onnx_bytes, memory // 8),
            data_bytes=min(self.data_bytes, memory // 4),
            unpacked_bytes=min(self.unpacked_bytes, memory // 4),
            srs_held_bytes=min(self.srs_held_bytes, memory // 2),
        )


LIMITS: Final = Limits()


def measure_memory() -> int:
    """Bytes of this machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limits_here() -> Limits:
    """``LIMITS`` within this machine's memory."""
    return LIMITS.within(measure_memory())


def most_threads() -> int:
    """Threads that may be asked for here: ``LIMITS.threads``, or four for each core if that is
    more."""
    return max(LIMITS.threads, 4 * (os.cpu_count() or 1))
