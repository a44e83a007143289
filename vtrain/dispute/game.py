"""The dispute game: a pure, deterministic state machine.

Any number of claims about one run, each a Merkle root, of which at most one is true; the game finds
out which by having all rivals descend to the leftmost leaf in which they differ, where a referee
recomputes one block of one operator.  Everything left of the difference is agreed.

- **log**: step records.  The first that differs names a step, and the last state agreed before it.
- **trace**: digests of every node's output since that state.  No log commits to them, so anyone may
  bond sub-claims for a side, each shown to end in its side's record; a side falls only when all its
  sub-claims have.
- **chunks**: the 1 KiB chunks of the first output that differs, in BLAKE3's own tree.
- **terms**: the states of the fold that gives the first element that differs, block by block, where
  it has more than one; sub-claims again.
- **leaf**: the referee recomputes a block from openings of agreed digests.

What is under a hash is a *fact*: it needs no opponent, is asked for once, and serves every pair of
rivals there is.  A claim belongs to its root and not to a party: whoever backs it may answer for
it, and anyone may back it at any time; since answers follow from the root, nobody can lose it on
purpose for others who back it and answer.

``apply`` and ``advance`` are the machine.  Time comes with the move: whatever was due before it
takes effect first, each at its own time, so that a game's state at a time depends on its moves and
their times alone.  A move at the very time at which something falls due is in time.
"""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from vtrain import _core
from vtrain.attest.claims import verify_claim
from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.commit.openings import verify_inclusion
from vtrain.dispute import money, statement
from vtrain.dispute.consequences import HASH, Work, get_depth
from vtrain.dispute.state import (
    TREE_DOMAINS,
    Answer,
    BondRecord,
    Class,
    Contest,
    Dispute,
    DisputedGraph,
    Game,
    LogClaim,
    Side,
    Verdict,
    compute_game_id,
)
from vtrain.errors import MoveRefusedError, RefusalError
from vtrain.spec.blake3_tree import compute_chunk_length
from vtrain.spec.commitment import compute_record_leaf
from vtrain.spec.domains import MOVE, compute_domain_hash
from vtrain.spec.frontier import compute_ranges
from vtrain.spec.merkle import compute_leaf_hash
from vtrain.wire import cbor
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.dispute import (
    MAX_BOND,
    MAX_BONDS,
    Bond,
    Genesis,
    Move,
    Open,
    Reveal,
    SignedMove,
    decode_move,
    encode_move,
)
from vtrain.wire.graph import StepGraph
from vtrain.wire.opening import InclusionProof
from vtrain.wire.record import StepRecord, decode_record

# --- a game from its beginning to its verdict


def start(genesis: Genesis, graph: StepGraph | DisputedGraph) -> Game:
    """The game at its opening: the solver's claim stands, and others may be bonded.

    SignatureError unless the claim is signed by the solver; MoveRefusedError for a genesis that
    contradicts itself, or a graph that is not the one it names.
    """
    verify_claim(get_claim(genesis))
    if genesis.arity & (genesis.arity - 1):
        raise MoveRefusedError("is not a power of two", where="genesis.arity")
    if isinstance(graph, StepGraph):
        graph = DisputedGraph(graph, genesis.graph_root)
    if (genesis.nodes, genesis.record_node) != (len(graph.nodes), graph.record_node):
        raise MoveRefusedError("does not follow from the graph", where="genesis.nodes")
    work = Work(Game(compute_game_id(genesis), genesis, graph, now=genesis.opened))
    _stand(work, genesis.solver, work.id, genesis.log_root)
    work.logs = work.logs.set(genesis.log_root, LogClaim(0))
    work.open_window()
    return work.finish()


def get_claim(genesis: Genesis) -> SignedClaim:
    """The solver's signed claim, which the game is about."""
    claim = Claim(
        run_id=genesis.run_id,
        solver=genesis.solver,
        task_id=genesis.task_id,
        log_size=genesis.log_size,
        log_root=genesis.log_root,
        kzg_root=genesis.kzg_root,
    )
    return SignedClaim(claim, genesis.signature)


def sign(game: bytes, about: bytes, move: Move, key: PrivateKey) -> SignedMove:
    """``move``, which answers ``about`` in the game of this id, signed."""
    unsigned = SignedMove(game, public_key(key), about, encode_move(move), bytes(64))
    return replace(unsigned, signature=key.sign(compute_move_digest(unsigned)))


def compute_move_digest(signed: SignedMove) -> bytes:
    """What is signed: H_move(game, party, about, move)."""
    about: dict[str, cbor.Value] = {
        "about": signed.about,
        "game": signed.game,
        "move": signed.move,
        "party": signed.party,
    }
    return compute_domain_hash(MOVE, cbor.encode(about))


def apply(game: Game, signed: SignedMove, now: int) -> Game:
    """The game after a move that was made at ``now`` (milliseconds).

    MoveRefusedError, EncodingError or SignatureError when it is not allowed: ``game`` is unchanged
    then, as it is immutable; only ``advance(game, now)`` says what time alone has done to it.
    """
    game = advance(game, now)
    check_offer(game, signed)
    verify_signature(signed.party, compute_move_digest(signed), signed.signature)
    return _do(game, signed)


def apply_verified(game: Game, signed: SignedMove, now: int) -> Game:
    """:func:`apply` for a move of which the signature was found to hold before."""
    game = advance(game, now)
    check_offer(game, signed)
    return _do(game, signed)


def _do(game: Game, signed: SignedMove) -> Game:
    move = decode_move(signed.move)
    work = Work(game)
    match move:
        case Bond():
            _bond(game, work, signed.about, move, signed.party)
        case Reveal():
            _reveal(game, work, signed.about, move, signed.party)
        case Open():
            _open(game, work, signed.about, move, signed.party)
    work.settle()
    return work.finish(moves=1)


def advance(game: Game, now: int) -> Game:
    """The game at ``now``, no move having been made: what was due before takes effect.

    MoveRefusedError for a time before the game's own.
    """
    if now < game.now:
        raise MoveRefusedError(f"{now} is before the game's own time {game.now}", where="now")
    if game.over or game.agenda is None or game.agenda.event.at >= now:
        return replace(game, now=now)
    work = Work(game)
    work.pass_until(now)
    return work.finish()


def find_deadline(game: Game) -> int | None:
    """When time alone may change the game next: what to ``advance`` to; None once it is over."""
    return None if game.agenda is None else game.agenda.event.at + 1


def find_verdict(game: Game) -> Verdict | None:
    """How the game ended; None while it goes on."""
    if not game.over:
        return None
    genesis = game.genesis
    settled = money.list_outcomes(game)
    return Verdict(
        game.id,
        money.find_standing(game),
        game.logs[genesis.log_root].fall,
        game.ends,
        len(settled.outcomes),
        money.compute_outcomes_digest(settled),
    )


# --- moves


def check_offer(game: Game, signed: SignedMove) -> None:
    """Refuse what is not asked for, or not of this party, before anything of it is decoded.

    MoveRefusedError; ``game`` is at the time of the move.  Neither signature nor content is looked
    at: whatever passes is as many bytes as such an answer may have, and asked for.
    """
    if signed.game != game.id:
        raise MoveRefusedError("is of another game", where="game")
    if game.over:
        raise MoveRefusedError("the game is over", where="game")
    question = game.asked.get(signed.about)
    if question is not None:
        limit = question.limit
        if not _find_own(game, signed):
            raise MoveRefusedError("backs no claim that this is asked of", where="party")
    else:
        limit = MAX_BOND
        scope = game.id if signed.about == game.id else game.sides.get(signed.about)
        if scope is None:
            raise MoveRefusedError("is not asked for, or not any more", where="about")
        if (scope, signed.party) in game.stands:
            raise MoveRefusedError("stands behind a claim of this contest already", where="party")
        if len(game.stands) > MAX_BONDS:  # the solver's, too, who has no bond
            raise MoveRefusedError(f"has {MAX_BONDS} bonds", where="game")
    if len(signed.move) > limit:
        raise MoveRefusedError(f"has more than the {limit} bytes that it may", where="move")


def _find_own(game: Game, signed: SignedMove) -> list[tuple[Contest, Dispute]]:
    """Where what is asked is asked of a claim that the party stands behind."""
    found = []
    question = game.asked[signed.about]
    for contest_id, dispute_id in question.where:
        contest = game.contests[contest_id]
        dispute = contest.disputes[dispute_id]
        own = game.find_own(contest, signed.party)
        if any(asked.owing & own for asked in _get_classes(dispute, question.value)):
            found.append((contest, dispute))
    return found


def _get_classes(dispute: Dispute, value: bytes) -> list[Class]:
    """The class that is asked; all of them when it is for an opening."""
    return [dispute.classes[value]] if value else list(dispute.classes.values())


def _stand(work: Work, party: bytes, scope: bytes, root: bytes) -> None:
    backers = work.backers.get((scope, root)) or Map()
    if party not in backers:
        work.backers = work.backers.set((scope, root), backers.set(party, len(backers)))
    work.stands = work.stands.set((scope, party), root)


def _bond(game: Game, work: Work, about: bytes, move: Bond, party: bytes) -> None:
    if about == game.id:
        _bond_log(game, work, move, party)
        return
    scope = game.sides.get(about)
    if scope is None:
        raise MoveRefusedError("is no side that takes sub-claims", where="about")
    contest = game.contests[scope]
    side = contest.sides[about]
    above = game.contests[contest.above]
    asked = above.disputes[contest.id].classes[side.value]
    index = contest.index.get(move.root)
    known = None if index is None else contest.claims[index]
    if known is not None and known.side != about:
        raise MoveRefusedError("this claim supports another side", where="about")
    if known is not None and not known.is_open:
        raise MoveRefusedError("this claim has fallen", where="root")
    is_new = known is None or known.fall is not None
    if is_new:
        if side.closes < game.now:
            raise MoveRefusedError("takes no new claims now", where="about")
        _check_bound(game, contest, side, move)
    backed = game.find_own(above, party) & asked.mask & above.live
    bonds = game.genesis.bonds
    amount = 0 if backed else bonds.trace if contest.level == "trace" else bonds.terms
    _stand(work, party, scope, move.root)
    work.note_bond(BondRecord(party, contest.level, scope, move.root, amount))
    if is_new:
        work.note_answer(Answer(party, contest.level, ((scope, b"", move.root),)))
        work.add_claim(scope, move.root, about)


def _bond_log(game: Game, work: Work, move: Bond, party: bytes) -> None:
    if move.leaf or move.path:
        raise MoveRefusedError("a claim of the log is its root alone", where="bond")
    known = game.logs.get(move.root)
    if known is None:
        if game.round > 0:
            raise MoveRefusedError("takes no new claims any more", where="game")
        work.logs = work.logs.set(move.root, LogClaim(len(game.logs)))
    elif known.fall is not None:
        raise MoveRefusedError("this claim has fallen", where="root")
    _stand(work, party, game.id, move.root)
    work.note_bond(BondRecord(party, "log", game.id, move.root, game.genesis.bonds.log))


def _check_bound(game: Game, contest: Contest, side: Side, move: Bond) -> None:
    """Refuse a sub-claim that does not end in what its side claims."""
    if contest.level == "trace":
        index = contest.size - game.genesis.nodes + game.genesis.record_node
        if move.leaf != compute_record_digest(decode_record(side.value)):
            raise MoveRefusedError("is not the record of its side", where="leaf")
    else:
        index = contest.size - 1
        site = game.graph.encode_site(contest.place.node)
        if _core.leaf_finish(*site, move.leaf) != side.value:
            raise MoveRefusedError("does not end in the element of its side", where="leaf")
    proof = InclusionProof(index, contest.size, move.path)
    if not verify_inclusion(TREE_DOMAINS[contest.level], move.root, move.leaf, proof):
        raise MoveRefusedError("is not in the claim's tree", where="leaf")


def compute_record_digest(record: StepRecord) -> bytes:
    """Tensor digest of the record node's output: of the leaf hash of the record in the log."""
    leaf = compute_record_leaf(record.step, record.batch_digest, record.loss, record.state_root)
    return _core.tensor_digest(leaf)


def _reveal(game: Game, work: Work, about: bytes, move: Reveal, party: bytes) -> None:
    question = game.asked.get(about)
    if question is None or not question.value:
        raise MoveRefusedError("no items are asked for here", where="about")
    contest, dispute = question.where[0]
    _check_items(game, game.contests[contest].disputes[dispute], question.value, move.items)
    where = tuple((*at, question.value) for at in question.where)
    work.note_answer(Answer(party, "answer", where))
    work.learn(about, move.items)


def _check_items(game: Game, dispute: Dispute, value: bytes, items: tuple[bytes, ...]) -> None:
    """Refuse items that are not what is under a hash."""
    depth = get_depth(game.genesis)
    start, end = dispute.start, dispute.end
    ranges = compute_ranges(start, end, depth)
    if len(items) != len(ranges):
        raise MoveRefusedError(f"has {len(items)} instead of {len(ranges)}", where="items")
    if dispute.tree == "chunks":
        lengths = [HASH] * len(ranges)
        if end - start == 1:
            lengths = [compute_chunk_length(dispute.length, start)]
        if [len(item) for item in items] != lengths:
            raise MoveRefusedError("an item has the wrong length", where="items")
        found = _core.fold_chunk_frontier(
            dispute.size, start, end, depth, list(items), dispute.is_root
        )
    else:
        domain = TREE_DOMAINS[dispute.tree]
        hashes = [
            compute_leaf_hash(domain, item) if last - first == 1 else item
            for item, (first, last) in zip(items, ranges, strict=True)
        ]
        if any(len(item) != HASH for item in hashes):
            raise MoveRefusedError("an item has the wrong length", where="items")
        found = _core.fold_frontier(domain, start, end, depth, hashes)
    if found != value:
        raise MoveRefusedError("do not give the hash that is asked about", where="items")


def _open(game: Game, work: Work, about: bytes, move: Open, party: bytes) -> None:
    question = game.asked.get(about)
    if question is None or question.value:
        raise MoveRefusedError("no opening is asked for here", where="about")
    ((contest, dispute),) = question.where
    try:
        ruling = statement.decode_ruling(
            _core.referee_judge(statement.compose(game, contest, dispute, move))
        )
    except RefusalError as error:
        raise MoveRefusedError(error.message, where=error.where) from error
    work.note_answer(Answer(party, "opening", ((contest, dispute, b""),)))
    work.rule(contest, dispute, ruling.after)
