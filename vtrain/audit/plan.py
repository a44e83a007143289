"""The one sampler: which of many things an audit looks at, and how likely that catches a cheat.

Every kind of check draws its indices here, from (randomness, digest of a claim's body, domain).
The claim is bound so that randomness cannot be reused for another run, the domain so that two
checks of one audit are independent.  Signatures have no part in it: whoever signs can make any
number of valid ones of one claim.  Nor would the body alone protect (its signer chose the run id,
and what is in the log): only the order does.  The claim comes first, the auditor pins its digest,
and the randomness exists after that; :func:`given_randomness` is told whether it was so.

The stream is BLAKE3 in derive_key mode, context "vtrain 2026 sampling v2", over the canonical CBOR
map {"claim", "domain", "population", "randomness"}, read as endless 8-byte little-endian words.  A
number below m is the next word below the greatest multiple of m that 2^64 holds, modulo m: the
words above it are skipped, so every outcome is equally likely.  Indices come by a Fisher-Yates
shuffle of 0 .. population - 1 stopped after ``count`` entries: the first k of a longer draw are the
draw of k.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from blake3 import blake3

from vtrain.errors import RunError
from vtrain.spec import domains
from vtrain.wire import cbor
from vtrain.wire.report import Detection, Randomness

RANDOMNESS_BYTES = 32
"""Bytes that an auditor draws; randomness given to us may have 1 to 64."""
MAX_RANDOMNESS_BYTES = 64
DIGEST_BYTES = 32
"""Bytes of a claim's digest."""
REPLAY_DOMAIN = "replay segments"
"""Domain under which the segments to replay are drawn."""
FRACTIONS = (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 4))
"""Shares of false steps for which a report states the chance of detection."""

_BLOCK = 1024


def draw_randomness(random: Callable[[int], bytes] = os.urandom) -> Randomness:
    """The auditor's own randomness, drawn now: call it only after the claim was read, and of what
    is at hand already."""
    return Randomness(
        random(RANDOMNESS_BYTES),
        "randomness of the auditor's own, drawn after the claim",
        predictable=False,
        fresh=True,
    )


def given_randomness(value: bytes, *, pinned: bool) -> Randomness:
    """Randomness handed in; RunError on a bad length.

    ``pinned``: the auditor held the digest of what is sampled before this existed.  Otherwise it is
    predictable: nobody can tell here who knew it when.
    """
    _check_randomness(value)
    source = "a seed that was given, for the claim that was pinned before"
    return Randomness(value, source if pinned else "a seed that was given", not pinned)


def _check_randomness(value: object) -> None:
    if not isinstance(value, bytes):
        raise RunError("is not bytes (of hex text: bytes.fromhex)", where="seed")
    if not 1 <= len(value) <= MAX_RANDOMNESS_BYTES:
        raise RunError(
            f"needs 1 to {MAX_RANDOMNESS_BYTES} bytes, has {len(value)}: hash what is longer",
            where="seed",
        )


def draw(
    randomness: bytes, digest: bytes, domain: str, population: int, count: int
) -> tuple[int, ...]:
    """``count`` distinct indices in [0, population), evenly drawn, in the order of the draw.

    ``digest`` (32 bytes) is that of the body of the claim about what is sampled.  All of them when
    ``count`` is not less than ``population`` (at most 2^48); RunError when either is negative, the
    randomness has no bytes or more than 64, or the digest is none.
    """
    _check_randomness(randomness)
    if len(digest) != DIGEST_BYTES:
        raise RunError(
            f"needs {DIGEST_BYTES} bytes, has {len(digest)}: give all of it, as `vtrain claim` "
            "shows it",
            where="claim's digest",
        )
    if not 0 <= population <= 2**48 or count < 0:
        raise RunError(f"cannot draw {count} of {population}", where="sampling plan")
    seed = cbor.encode(
        {
            "claim": digest,
            "domain": domain,
            "population": population,
            "randomness": randomness,
        }
    )
    words = _words(seed)
    moved: dict[int, int] = {}  # entries of the shuffled array that are not their own index
    drawn = []
    for i in range(min(count, population)):
        j = i + _below(words, population - i)
        drawn.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return tuple(drawn)


def _words(seed: bytes) -> Iterator[int]:
    stream = blake3(seed, derive_key_context=domains.SAMPLING)
    position = 0
    while True:
        block = stream.digest(length=_BLOCK, seek=position)
        for start in range(0, _BLOCK, 8):
            yield int.from_bytes(block[start : start + 8], "little")
        position += _BLOCK


def _below(words: Iterator[int], bound: int) -> int:
    limit = 2**64 // bound * bound
    return next(word for word in words if word < limit) % bound


@dataclass(frozen=True)
class Segments:
    """``steps`` steps cut at their checkpoints: every ``every`` steps, the last one shorter."""

    steps: int
    every: int

    @property
    def count(self) -> int:
        """How many segments there are."""
        return -(-self.steps // self.every)

    def bounds(self, index: int) -> tuple[int, int]:
        """(steps done before, steps done after) segment ``index``."""
        start = index * self.every
        return start, min(start + self.every, self.steps)


def compute_fewest_segments(segments: Segments, bad_steps: int) -> int:
    """Into how few segments ``bad_steps`` false steps fit: the packing that hides them best."""
    full = segments.steps // segments.every
    if bad_steps <= full * segments.every:
        return -(-bad_steps // segments.every)
    return segments.count


@dataclass(frozen=True)
class Wanted:
    """A draw that is to hit a cheat with ``probability`` at least: one false step, or the share
    ``fraction`` of the steps, packed so that it hides best."""

    probability: Fraction
    fraction: Fraction | None = None


def compute_sample_size(segments: Segments, wanted: Wanted) -> int:
    """The fewest segments to draw for what is wanted: all of them for a probability of 1.

    RunError for a probability or a share that is none.
    """
    if not 0 < wanted.probability <= 1:
        raise RunError("must be above 0 and at most 1", where=f"probability {wanted.probability}")
    if wanted.fraction is not None and not 0 < wanted.fraction <= 1:
        raise RunError("must be above 0 and at most 1", where=f"share {wanted.fraction}")

    def suffices(count: int) -> bool:
        return _detect(segments, wanted.fraction, count).probability >= wanted.probability

    least, enough = 0, 1  # small ones first: a chance takes time with the number drawn
    while enough < segments.count and not suffices(enough):
        least, enough = enough + 1, min(2 * enough, segments.count)
    while least < enough:
        middle = (least + enough) // 2
        if suffices(middle):
            enough = middle
        else:
            least = middle + 1
    return enough


def compute_detections(segments: Segments, drawn: int) -> tuple[Detection, ...]:
    """Chance of detection for a single bad step, then for each of ``FRACTIONS`` packed worst."""
    return tuple(_detect(segments, fraction, drawn) for fraction in (None, *FRACTIONS))


def _detect(segments: Segments, fraction: Fraction | None, drawn: int) -> Detection:
    bad = 1 if fraction is None else -(-segments.steps * fraction.numerator // fraction.denominator)
    packed = compute_fewest_segments(segments, bad)
    return Detection(fraction, bad, packed, segments.count, min(drawn, segments.count))
