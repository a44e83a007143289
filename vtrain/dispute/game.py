"""The dispute game: a pure, deterministic state machine.

Any number of claims about one run, each a Merkle root, of which at most one is true; the game finds
out which by having two of them at a time descend to the leftmost leaf in which they differ, and a
referee recompute one block of one operator there.  Everything left of the difference is agreed.

- **log**: step records.  The first that differs names a step, and the last state agreed before it.
- **trace**: digests of every node's output since that state.  No log commits to them, so anyone may
  bond sub-claims, each shown to end in its parent's record; they play a nested tournament, and a
  parent falls only when all its sub-claims have.
- **chunks**: the 1 KiB chunks of the first output that differs, in BLAKE3's own tree.
- **terms**: the states of the fold that gives the first element that differs, block by block, where
  it has more than one; sub-claims again.
- **leaf**: the referee recomputes a block from openings of agreed digests.

A claim belongs to its root and not to a party: whoever backs it may move for it, and anyone may
back it at any time.  What a claim must reveal is determined by its root, so that nobody can lose it
on purpose for others who back it and move.  Tournaments go in rounds of pairs: whoever backs the
true claim plays at most ceil(log2(claims)) matches in each.

``apply`` and ``advance`` are the machine.  Time comes with the move: whatever deadlines passed
before it take effect first, each at its own time, so that a game's state at a time depends on its
moves and their times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from vtrain import _core
from vtrain.attest.claims import verify_claim
from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.commit.openings import verify_inclusion
from vtrain.dispute import statement
from vtrain.dispute.state import (
    TREE_DOMAINS,
    Entry,
    Fall,
    Game,
    Items,
    Match,
    Place,
    Reason,
    Stage,
    Tournament,
    Tree,
    Verdict,
    compute_game_id,
    compute_position,
    get_base_step,
)
from vtrain.errors import EncodingError, GraphError, MoveRefusedError, RefusalError
from vtrain.spec.blake3_tree import compute_chunk_count, compute_chunk_length
from vtrain.spec.commitment import compute_record_leaf
from vtrain.spec.domains import GRAPH, MOVE, compute_domain_hash
from vtrain.spec.frontier import compute_ranges
from vtrain.spec.merkle import compute_leaf_hash
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire import cbor
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.dispute import (
    MAX_ACCUSED,
    Accuse,
    Bond,
    Genesis,
    Move,
    NodeOpening,
    Open,
    Reveal,
    SignedMove,
    Site,
    decode_move,
    encode_move,
)
from vtrain.wire.graph import decode_node
from vtrain.wire.opening import CHUNK_LENGTH, InclusionProof
from vtrain.wire.record import StepRecord, decode_record

HASH: Final = 32

TRANSITIONS: Final[Mapping[tuple[Stage, Tree], frozenset[tuple[Stage, Tree]]]] = {
    ("reveal", "log"): frozenset({("reveal", "log"), ("claims", "log"), ("over", "log")}),
    ("reveal", "trace"): frozenset({("reveal", "trace"), ("reveal", "chunks"), ("over", "trace")}),
    ("reveal", "chunks"): frozenset(
        {("reveal", "chunks"), ("open", "chunks"), ("claims", "chunks"), ("over", "chunks")}
    ),
    ("reveal", "terms"): frozenset({("reveal", "terms"), ("open", "terms"), ("over", "terms")}),
    ("claims", "log"): frozenset({("over", "log")}),
    ("claims", "chunks"): frozenset({("over", "chunks")}),
    ("open", "chunks"): frozenset({("over", "chunks")}),
    ("open", "terms"): frozenset({("over", "terms")}),
}
"""Where a match may go from where it is, by stage and tree; the machine is held to it.  A match
begins at ("reveal", tree of its tournament), and one that is over never changes."""


# --- a game from its beginning to its verdict


def start(genesis: Genesis) -> Game:
    """The game at its opening: the solver's claim stands, and others may be bonded.

    SignatureError unless the claim is signed by the solver; MoveRefusedError for a genesis that
    contradicts itself.
    """
    verify_claim(get_claim(genesis))
    if genesis.arity & (genesis.arity - 1):
        raise MoveRefusedError("is not a power of two", where="genesis.arity")
    if genesis.record_node >= genesis.nodes:
        raise MoveRefusedError("is no node of the graph", where="genesis.record_node")
    top = Tournament(
        tree="log",
        parent=-1,
        size=genesis.log_size,
        closes=genesis.opened + genesis.clocks.join,
        entries=(Entry(genesis.log_root, 0, (genesis.solver,)),),
    )
    return Game(
        compute_game_id(genesis),
        genesis,
        now=genesis.opened,
        moves=0,
        tournaments=(top,),
        matches=(),
    )


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


def sign(game: Game, move: Move, key: PrivateKey) -> SignedMove:
    """``move`` signed for its position in ``game``."""
    position = compute_position(game, move)
    unsigned = SignedMove(game.id, public_key(key), position, encode_move(move), bytes(64))
    return replace(unsigned, signature=key.sign(compute_move_digest(unsigned)))


def compute_move_digest(signed: SignedMove) -> bytes:
    """What is signed: H_move(game, party, position, move)."""
    about: dict[str, cbor.Value] = {
        "game": signed.game,
        "move": signed.move,
        "party": signed.party,
        "position": signed.position,
    }
    return compute_domain_hash(MOVE, cbor.encode(about))


def apply(game: Game, signed: SignedMove, now: int) -> Game:
    """The game after a move that was made at ``now`` (milliseconds).

    MoveRefusedError, EncodingError or SignatureError when it is not allowed: ``game`` is unchanged
    then, as it is immutable; only ``advance(game, now)`` says what time alone has done to it.
    """
    game = advance(game, now)
    if game.over:
        raise MoveRefusedError("the game is over", where="game")
    _check_signed(game, signed)
    if signed.party in game.barred:
        raise MoveRefusedError("has signed moves that contradict each other", where="party")
    move = decode_move(signed.move)
    if signed.position != compute_position(game, move):
        raise MoveRefusedError("is not what this move answers now", where="position")
    match move:
        case Bond():
            after = _bond(game, move, signed.party)
        case Reveal():
            after = _reveal(game, move, signed.party)
        case Open():
            after = _open(game, move, signed.party)
        case Accuse():
            after = _accuse(game, move)
    return replace(after, moves=game.moves + 1)


def advance(game: Game, now: int) -> Game:
    """The game at ``now``, no move having been made: what ran out before takes effect.

    MoveRefusedError for a time before the game's own.
    """
    if now < game.now:
        raise MoveRefusedError(f"{now} is before the game's own time {game.now}", where="now")
    while not game.over:
        due = find_deadline(game)
        if due is None or due[0] > now:
            break
        at, tournament, match = due
        game = replace(game, now=max(game.now, at))
        game = _time_out(game, match) if tournament < 0 else _pair(game, tournament)
    return replace(game, now=now)


def find_deadline(game: Game) -> tuple[int, int, int] | None:
    """What runs out next: (time, tournament or -1, match or -1); None when nothing will."""
    due = [
        (tournament.closes, index, -1)
        for index, tournament in enumerate(game.tournaments)
        if tournament.round == 0 and not tournament.over
    ]
    due += [
        (match.deadline(side), -1, index)
        for index, match in enumerate(game.matches)
        if match.stage in ("reveal", "open")
        for side in (0, 1)
        if match.owes(side)
    ]
    return min(due, default=None)


def find_verdict(game: Game) -> Verdict | None:
    """How the game ended; None while it goes on."""
    top = game.tournaments[0]
    if not top.over:
        return None
    standing = top.entries[top.winner].root if top.winner >= 0 else b""
    return Verdict(game.id, standing, top.entries[0].fall, top.entries, game.barred)


# --- moves


def _check_signed(game: Game, signed: SignedMove) -> None:
    if signed.game != game.id:
        raise MoveRefusedError("is of another game", where="game")
    verify_signature(signed.party, compute_move_digest(signed), signed.signature)


def _bond(game: Game, move: Bond, party: bytes) -> Game:
    if move.tournament >= len(game.tournaments):
        raise MoveRefusedError("there is none", where="tournament")
    tournament = game.tournaments[move.tournament]
    if tournament.over:
        raise MoveRefusedError("is over", where="tournament")
    if tournament.backed_by(party) >= 0:
        raise MoveRefusedError("stands behind a claim of this tournament already", where="party")
    known = tournament.find(move.root)
    entries = list(tournament.entries)
    if known >= 0:
        entry = entries[known]
        if entry.side != move.side:
            raise MoveRefusedError("this claim supports the other side", where="side")
        entries[known] = replace(entry, backers=(*entry.backers, party))
    else:
        if tournament.round > 0:
            raise MoveRefusedError("takes no new claims any more", where="tournament")
        _check_bound(game, tournament, move)
        entries.append(Entry(move.root, move.side, (party,)))
    return _put_tournament(game, move.tournament, replace(tournament, entries=tuple(entries)))


def _check_bound(game: Game, tournament: Tournament, move: Bond) -> None:
    """Refuse a sub-claim that does not end in what its parent claims."""
    if tournament.parent < 0:
        if move.side or move.leaf or move.path:
            raise MoveRefusedError("a claim of the log is its root alone", where="bond")
        return
    parent = game.matches[tournament.parent]
    claimed = parent.leaves[move.side]
    if tournament.tree == "trace":
        nodes = game.genesis.nodes
        index = tournament.size - nodes + game.genesis.record_node
        record = decode_record(claimed)
        if move.leaf != compute_record_digest(record):
            raise MoveRefusedError("is not the parent's record", where="leaf")
    else:
        index = tournament.size - 1
        site = _site_of(parent)
        value = _core.leaf_finish(site.node.data, [s.data for s in site.sources], move.leaf)
        if value != claimed:
            raise MoveRefusedError("does not end in the parent's element", where="leaf")
    proof = InclusionProof(index, tournament.size, move.path)
    if not verify_inclusion(TREE_DOMAINS[tournament.tree], move.root, move.leaf, proof):
        raise MoveRefusedError("is not in the claim's tree", where="leaf")


def compute_record_digest(record: StepRecord) -> bytes:
    """Tensor digest of the record node's output: of the leaf hash of the record in the log."""
    leaf = compute_record_leaf(record.step, record.batch_digest, record.loss, record.state_root)
    return _core.tensor_digest(leaf)


def _reveal(game: Game, move: Reveal, party: bytes) -> Game:
    match, side = _find_match(game, move.match, "reveal", party)
    if match.revealed[side]:
        raise MoveRefusedError("this side has revealed already", where="match")
    if match.tree == "chunks" and match.end - match.start == match.size:
        match = _take_site(game, match, move.site)
    elif move.site is not None:
        raise MoveRefusedError("is not asked for", where="site")
    _check_items(game, match, side, move.items)
    left = [*match.left]
    left[side] -= game.now - match.since
    revealed = [*match.revealed]
    revealed[side] = move.items
    match = replace(match, left=(left[0], left[1]), revealed=(revealed[0], revealed[1]))
    game = _put_match(game, move.match, match)
    return _narrow(game, move.match) if all(revealed) else game


def _find_match(game: Game, index: int, stage: Stage, party: bytes) -> tuple[Match, int]:
    """The match, which must be at ``stage``, and the side that ``party`` may move for."""
    if index >= len(game.matches):
        raise MoveRefusedError("there is none", where="match")
    match = game.matches[index]
    if match.stage != stage:
        raise MoveRefusedError(
            f"is at stage {match.stage}, this move is for {stage}", where="match"
        )
    entry = game.tournaments[match.tournament].backed_by(party)
    if entry not in match.sides:
        raise MoveRefusedError("backs neither claim of this match", where="party")
    return match, match.sides.index(entry)


def _take_site(game: Game, match: Match, site: Site | None) -> Match:
    """Learn the disputed node and with it the length of the tensor that is disputed."""
    if site is None:
        raise MoveRefusedError("the first reveal of a tensor opens its node", where="site")
    if match.site is not None:
        if site != match.site:
            raise MoveRefusedError("is not what the other side has opened", where="site")
        return match
    _check_node(game, site.node, match.place.node)
    try:
        node = decode_node(site.node.data, match.place.node)
    except EncodingError as error:
        raise MoveRefusedError(str(error), where="site.node") from error
    if len(site.sources) != len(node.inputs) or len(node.outputs) != 1:
        raise MoveRefusedError("a source for each input is needed", where="site.sources")
    for source, ref in zip(site.sources, node.inputs, strict=True):
        _check_node(game, source, ref.node)
    chunks = compute_chunk_count(node.outputs[0].byte_length)
    return replace(match, site=site, size=chunks, start=0, end=chunks)


def _check_node(game: Game, opening: NodeOpening, index: int) -> None:
    proof = InclusionProof(opening.index, game.genesis.nodes, opening.path)
    holds = opening.index == index and verify_inclusion(
        GRAPH, game.genesis.graph_root, opening.data, proof
    )
    if not holds:
        raise MoveRefusedError(f"is not node {index} of the graph", where="site")


def _check_items(game: Game, match: Match, side: int, items: Items) -> None:
    """Refuse a frontier of which the disputed hash does not follow."""
    depth = get_depth(game.genesis)
    ranges = compute_ranges(match.start, match.end, depth)
    if len(items) != len(ranges):
        raise MoveRefusedError(f"has {len(items)} instead of {len(ranges)}", where="items")
    if match.tree == "chunks":
        whole = match.end - match.start == match.size
        if match.end - match.start == 1:
            lengths = [compute_chunk_length(_get_length(match), match.start)]
        else:
            lengths = [HASH] * len(ranges)
        if [len(item) for item in items] != lengths:
            raise MoveRefusedError("an item has the wrong length", where="items")
        found = _core.fold_chunk_frontier(
            match.size, match.start, match.end, depth, list(items), whole
        )
    else:
        domain = TREE_DOMAINS[match.tree]
        hashes = [
            compute_leaf_hash(domain, item) if end - start == 1 else item
            for item, (start, end) in zip(items, ranges, strict=True)
        ]
        if any(len(item) != HASH for item in hashes):
            raise MoveRefusedError("an item has the wrong length", where="items")
        found = _core.fold_frontier(domain, match.start, match.end, depth, hashes)
    if found != match.hashes[side]:
        raise MoveRefusedError("do not give the hash that this claim has here", where="items")


def get_depth(genesis: Genesis) -> int:
    """Levels of a tree that one round goes down: log2 of the arity."""
    return genesis.arity.bit_length() - 1


def _get_length(match: Match) -> int:
    """Bytes of the tensor under dispute."""
    site = _site_of(match)
    return decode_node(site.node.data, site.node.index).outputs[0].byte_length


def _site_of(match: Match) -> Site:
    if match.site is None:
        raise MoveRefusedError("no node is opened yet", where="match")
    return match.site


def _open(game: Game, move: Open, party: bytes) -> Game:
    _, side = _find_match(game, move.match, "open", party)
    try:
        ruling = statement.decode_ruling(
            _core.referee_judge(statement.compose(game, move.match, side, move))
        )
    except RefusalError as error:
        raise MoveRefusedError(error.message, where=error.where) from error
    return _finish(game, move.match, [bool(right) for right in ruling.right], "refuted")


def _accuse(game: Game, move: Accuse) -> Game:
    first, second = move.first, move.second
    for signed in (first, second):
        if len(signed.move) > MAX_ACCUSED:
            raise MoveRefusedError(f"has more than {MAX_ACCUSED} bytes", where="accuse")
        _check_signed(game, signed)
    if first.party != second.party or first.position != second.position:
        raise MoveRefusedError("are of different parties or positions", where="accuse")
    if not _contradict(decode_move(first.move), decode_move(second.move)):
        raise MoveRefusedError("do not contradict each other", where="accuse")
    if first.party in game.barred:
        raise MoveRefusedError("is barred already", where="accuse")
    # Else keys made for the purpose could accuse one another without end.
    if all(tournament.backed_by(first.party) < 0 for tournament in game.tournaments):
        raise MoveRefusedError("the accused stands behind no claim of this game", where="accuse")
    return replace(game, barred=(*game.barred, first.party))


def _contradict(first: Move, second: Move) -> bool:
    """Two claims about one thing: an opening is none, since it proves what it says."""
    match first, second:
        case Bond(), Bond():
            return (first.root, first.side) != (second.root, second.side)
        case Reveal(), Reveal():
            return first.items != second.items
        case _:
            return False


# --- the way down


def _narrow(game: Game, index: int) -> Game:
    """Both frontiers are revealed: go on to the leftmost range in which they differ."""
    match = game.matches[index]
    first, second = match.revealed
    ranges = compute_ranges(match.start, match.end, get_depth(game.genesis))
    at = next(
        (i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]), -1
    )
    if at < 0:
        raise MoveRefusedError("equal frontiers under different hashes", where="items")
    (start, end), pair = ranges[at], (first[at], second[at])
    is_leaf = end - start == 1 and (match.tree != "chunks" or match.end - match.start == 1)
    if is_leaf:
        game = _put_match(game, index, replace(match, leaves=pair))
        return _LEAVES[match.tree](game, index, start)
    return _put_match(game, index, _ask(game, replace(match, start=start, end=end, hashes=pair)))


def _ask(game: Game, match: Match) -> Match:
    """The match with a new move asked of both sides, who have some grace for it."""
    grace = game.genesis.clocks.grace
    return replace(
        match,
        since=game.now,
        left=(max(match.left[0], grace), max(match.left[1], grace)),
        round=match.round + 1,
        revealed=((), ()),
    )


def _record_found(game: Game, index: int, leaf: int) -> Game:
    """The records of a step differ: a nested tournament about the steps since the last state."""
    match, step = game.matches[index], leaf + 1
    match = replace(match, place=Place(step=step))
    game = _put_match(game, index, match)
    sound = [_is_record(game.genesis, data, step) for data in match.leaves]
    if not all(sound):
        return _finish(game, index, sound, "malformed")
    size = (step - get_base_step(game.genesis.commit_every, step)) * game.genesis.nodes
    return _nest(game, index, "trace", size, game.genesis.clocks.trace)


def _is_record(genesis: Genesis, data: bytes, step: int) -> bool:
    try:
        record = decode_record(data)
    except EncodingError:
        return False
    return record.step == step and bool(record.state_root) == (step % genesis.commit_every == 0)


def _digest_found(game: Game, index: int, leaf: int) -> Game:
    """The digests of a node's output differ: down into the tensor's own tree of chunks."""
    match = game.matches[index]
    log = game.matches[game.tournaments[match.tournament].parent]
    base = get_base_step(game.genesis.commit_every, log.place.step)
    offset, node = divmod(leaf, game.genesis.nodes)
    place = Place(step=base + 1 + offset, node=node)
    match = replace(match, place=place)
    game = _put_match(game, index, match)
    sound = [len(data) == HASH for data in match.leaves]
    if not all(sound):
        return _finish(game, index, sound, "malformed")
    chunks = replace(match, tree="chunks", size=0, start=0, end=0, hashes=match.leaves)
    return _put_match(game, index, _ask(game, chunks))


def _chunk_found(game: Game, index: int, leaf: int) -> Game:
    """The chunks differ: to the first element, and the fold that gives it."""
    match = game.matches[index]
    site, (first, second) = _site_of(match), match.leaves
    node = decode_node(site.node.data, site.node.index)
    width = NUMPY_DTYPES[node.outputs[0].dtype].itemsize
    at = next(i for i in range(len(first)) if first[i] != second[i]) // width
    values = tuple(chunk[at * width : (at + 1) * width] for chunk in (first, second))
    element = leaf * (CHUNK_LENGTH // width) + at
    match = replace(
        match,
        place=replace(match.place, chunk=leaf, element=element),
        leaves=(values[0], values[1]),
    )
    game = _put_match(game, index, match)
    blocks = count_blocks(site)
    if blocks == 1:
        return _put_match(game, index, replace(_ask(game, match), stage="open"))
    return _nest(game, index, "terms", blocks, game.genesis.clocks.terms)


def count_blocks(site: Site) -> int:
    """Blocks of terms in the fold of an element of the node's output."""
    try:
        terms, length, _ = _core.leaf_fold(site.node.data, [s.data for s in site.sources])
    except (GraphError, EncodingError) as error:
        raise MoveRefusedError(str(error), where="site") from error
    return -(-terms // length)


def _state_found(game: Game, index: int, leaf: int) -> Game:
    """The fold states after a block differ, and agree before it."""
    match = game.matches[index]
    parent = game.matches[game.tournaments[match.tournament].parent]
    match = replace(match, place=replace(parent.place, block=leaf))
    game = _put_match(game, index, match)
    site = _site_of(parent)
    _, _, width = _core.leaf_fold(site.node.data, [s.data for s in site.sources])
    sound = [len(state) == 8 * width for state in match.leaves]
    if not all(sound):
        return _finish(game, index, sound, "malformed")
    return _put_match(game, index, replace(_ask(game, match), stage="open"))


_LEAVES: Final[Mapping[Tree, Callable[[Game, int, int], Game]]] = {
    "log": _record_found,
    "trace": _digest_found,
    "chunks": _chunk_found,
    "terms": _state_found,
}


# --- tournaments


def _nest(game: Game, index: int, tree: Tree, size: int, window: int) -> Game:
    """Have a match decided by a tournament of sub-claims."""
    nested = Tournament(tree=tree, parent=index, size=size, closes=game.now + window)
    match = replace(game.matches[index], stage="claims", nested=len(game.tournaments))
    game = replace(game, tournaments=(*game.tournaments, nested))
    return _put_match(game, index, match)


def _pair(game: Game, index: int) -> Game:
    """The next round of a tournament, or its end: when all that stand support one side."""
    tournament = game.tournaments[index]
    standing = tournament.standing()
    sides = {tournament.entries[i].side for i in standing}
    decided = len(standing) <= 1 if tournament.parent < 0 else len(sides) <= 1
    if decided:
        winner = standing[0] if standing else -1
        tournament = replace(
            tournament, round=tournament.round + 1, matches=(), winner=winner, over=1
        )
        game = _put_tournament(game, index, tournament)
        if tournament.parent < 0:
            return game
        right = [side in sides for side in (0, 1)]
        return _finish(game, tournament.parent, right, "undefended")
    # By root, so that nobody chooses: claims are paired in an order that their order of arrival
    # has no part in; the last of an odd number waits a round.
    order = sorted(standing, key=lambda i: tournament.entries[i].root)
    pairs = list(zip(order[::2], order[1::2], strict=False))
    first = len(game.matches)
    matches = tuple(_make_match(game, index, pair) for pair in pairs)
    tournament = replace(
        tournament,
        round=tournament.round + 1,
        matches=tuple(range(first, first + len(matches))),
    )
    game = replace(game, matches=game.matches + matches)
    return _put_tournament(game, index, tournament)


def _make_match(game: Game, index: int, sides: tuple[int, int]) -> Match:
    tournament, budget = game.tournaments[index], game.genesis.clocks.match
    return Match(
        tournament=index,
        sides=sides,
        stage="reveal",
        tree=tournament.tree,
        size=tournament.size,
        start=0,
        end=tournament.size,
        hashes=(tournament.entries[sides[0]].root, tournament.entries[sides[1]].root),
        left=(budget, budget),
        since=game.now,
    )


def _time_out(game: Game, index: int) -> Game:
    """A clock has run out: whoever owes a move and has no time left falls."""
    match = game.matches[index]
    right = [not match.owes(side) or match.deadline(side) > game.now for side in (0, 1)]
    return _finish(game, index, right, "silent")


def _finish(game: Game, index: int, right: Sequence[bool], reason: Reason) -> Game:
    """End a match: the claims of the sides that are not ``right`` fall."""
    match = game.matches[index]
    tournament = game.tournaments[match.tournament]
    entries = list(tournament.entries)
    for side in (0, 1):
        if not right[side]:
            entry = match.sides[side]
            entries[entry] = replace(entries[entry], fall=_find_fall(game, index, side, reason))
    game = _put_tournament(game, match.tournament, replace(tournament, entries=tuple(entries)))
    game = _put_match(game, index, replace(match, stage="over"))
    if all(game.matches[i].stage == "over" for i in tournament.matches):
        return _pair(game, match.tournament)
    return game


def _find_fall(game: Game, index: int, side: int, reason: Reason) -> Fall:
    """How this side of a match falls: as its sub-claims did, if it had any.

    Of several the one that the claim's first backer stood for counts, else one that was refuted:
    others' sub-claims may be false in other places.
    """
    match = game.matches[index]
    fall = Fall(reason, index, match.place, game.now)
    if match.nested < 0:
        return fall
    author = game.tournaments[match.tournament].entries[match.sides[side]].backers[0]
    inner = [
        (author in entry.backers, entry.fall.reason == "refuted", entry.fall)
        for entry in game.tournaments[match.nested].entries
        if entry.side == side and entry.fall is not None
    ]
    if not inner:
        return fall
    *_, chosen = max(inner, key=lambda item: item[:2])
    return replace(chosen, match=index, at=game.now)


def _put_match(game: Game, index: int, match: Match) -> Game:
    """Store a changed match; every change of stage and tree is one that ``TRANSITIONS`` has."""
    before = game.matches[index]
    change = (match.stage, match.tree)
    if change not in TRANSITIONS[before.stage, before.tree]:
        raise MoveRefusedError(f"no way from {before.stage} to {change}", where=f"match {index}")
    matches = (*game.matches[:index], match, *game.matches[index + 1 :])
    return replace(game, matches=matches)


def _put_tournament(game: Game, index: int, tournament: Tournament) -> Game:
    tournaments = (*game.tournaments[:index], tournament, *game.tournaments[index + 1 :])
    return replace(game, tournaments=tournaments)
