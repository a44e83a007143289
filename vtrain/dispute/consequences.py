"""What follows from a fact, a fall, or the passing of time: the inner half of the rules.

A dispute has classes: claims that agree on all that is left of it, by what they have in it.  Two
classes of which the items below are known part at the leftmost item in which these differ; there is
a dispute below, in which they are of two classes again, with whoever else agrees with either.  So
every pair of rivals walks down to its own leftmost difference, and n claims are in at most n - 1
disputes at each depth, however many pairs they are.

Nothing here checks a move: ``vtrain.dispute.game`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from immutables import Map

from vtrain.dispute import agenda as agendas
from vtrain.dispute.state import (
    Answer,
    BondRecord,
    Chain,
    Claim,
    Class,
    Contest,
    Dispute,
    Event,
    Fall,
    Game,
    Leaf,
    Level,
    LogClaim,
    Place,
    Question,
    Reason,
    Side,
    compute_dispute_id,
    compute_fact_id,
    compute_group_id,
    compute_side_id,
    get_base_step,
    list_bits,
)
from vtrain.errors import EncodingError
from vtrain.spec.frontier import compute_ranges
from vtrain.wire.dispute import Genesis
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.record import decode_record

HASH: Final = 32
_ITEM: Final = HASH + 2
"""Encoded bytes of a hash; of a leaf's data, at most :data:`_LEAF`."""
_LEAF: Final = CHUNK_LENGTH + 3
_HEAD: Final = 64

_LEAVES: Final[Mapping[str, Leaf]] = {"log": "record", "trace": "digest", "terms": "state"}
"""What single leaves of a tree are; those of ``chunks`` are cut into elements."""


class Falling(NamedTuple):
    """Claims that fall together."""

    contest: bytes
    claims: int
    reason: Reason
    place: Place


class Work:
    """A game on its way to the next state, which :meth:`finish` gives.

    ``final`` says that nothing more can come at this very time, as when time alone goes on: what
    was possible until ``now`` is over then.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self.id = game.id
        self.genesis, self.graph = game.genesis, game.graph
        self.now, self.final = game.now, False
        self.round, self.ends = game.round, game.ends
        self.logs, self.groups, self.loads = game.logs, game.groups, game.loads
        self.contests, self.sides = game.contests, game.sides
        self.facts, self.asked = game.facts, game.asked
        self.backers, self.stands = game.backers, game.stands
        self.agenda, self.answers, self.bonds = game.agenda, game.answers, game.bonds
        self._falling: list[Falling] = []
        self._dirty: dict[tuple[bytes, bytes], bool] = {}

    def finish(self, *, moves: int = 0) -> Game:
        """The state that has been worked out, so many ``moves`` later."""
        return replace(
            self._game,
            now=self.now,
            moves=self._game.moves + moves,
            round=self.round,
            ends=self.ends,
            logs=self.logs,
            groups=self.groups,
            loads=self.loads,
            contests=self.contests,
            sides=self.sides,
            facts=self.facts,
            asked=self.asked,
            backers=self.backers,
            stands=self.stands,
            agenda=self.agenda,
            answers=self.answers,
            bonds=self.bonds,
        )

    # --- time

    def pass_until(self, now: int) -> None:
        """Let whatever was due before ``now`` take effect, each at its own time.

        What falls at one time falls together: who is named first makes no difference.
        """
        while self.ends < 0 and self.agenda is not None and self.agenda.event.at < now:
            at = self.agenda.event.at
            self.now, self.final = max(self.now, at), True
            events = []
            while self.agenda is not None and self.agenda.event.at == at:
                events.append(self.agenda.event)
                self.agenda = agendas.drop_first(self.agenda)
            self._happen(events)
            self.settle()
        self.now, self.final = now, False

    def _happen(self, events: Sequence[Event]) -> None:
        """What was planned for one time."""
        due: dict[bytes, list[Event]] = {}
        for event in events:
            if event.kind == "join":
                self._start_round(sorted(self.logs))
            elif event.kind == "window":
                self._check_side(self.contests[event.contest], event.key)
            else:
                due.setdefault(event.contest, []).append(event)
        for contest, found in due.items():
            self._check_due(self.contests[contest], sorted(found))

    def _check_due(self, contest: Contest, events: Sequence[Event]) -> None:
        """Answers are overdue: whoever has no time left falls, the others' clocks run."""
        at = events[0].at
        late: list[tuple[Event, int]] = []
        everyone = 0
        for event in events:
            asked = contest.disputes[event.key].classes[event.value].asked
            claims = sum(owing for owing, due in asked if due <= at) & contest.live
            late.append((event, claims))
            everyone |= claims
        ends = {
            claim: max(due, contest.claims[claim].mark) + contest.claims[claim].left
            for claim, due in contest.find_due(everyone, at + 1).items()
        }
        for event, claims in late:
            own = {claim: ends[claim] for claim in list_bits(claims) if claim in ends}
            falls = sum(1 << claim for claim, end in own.items() if end <= at)
            if falls:
                self.fall(contest.id, falls, "silent", contest.disputes[event.key].place)
            following = [end for end in own.values() if end > at]
            if following:
                self._plan(event._replace(at=min(following)))

    def _plan(self, event: Event) -> None:
        self.agenda = agendas.add_event(self.agenda, event)

    # --- contests

    def open_window(self) -> None:
        """The game begins: claims of the log may come."""
        at = self.now + self.genesis.clocks.join
        self._plan(Event(at, "join", self.id, b"", b""))

    def _start_round(self, roots: Sequence[bytes]) -> None:
        """Cut the claims that stand into groups, all of which play; or the end, if there is one."""
        self.round += 1
        # Sub-claims of one side may be rivals still, whose side has no rival left.
        self.agenda, self.asked = None, Map()
        if len(roots) <= 1:
            self.ends = self.now
            return
        count = -(-len(roots) // self.genesis.group)
        groups = [list(roots[i::count]) for i in range(count)]
        ids = [compute_group_id(self.id, self.round, group) for group in groups]
        self.groups = tuple(ids)
        for group_id, group in zip(ids, groups, strict=True):
            self._add_contest(group_id, "log", group_id, b"", self.genesis.log_size, Place())
            self.loads = self.loads.set(group_id, 0)
            for root in group:
                self.add_claim(group_id, root, b"")

    def _add_contest(
        self, id_: bytes, level: Level, group: bytes, above: bytes, size: int, place: Place
    ) -> None:
        root = Dispute(
            id=compute_dispute_id(id_, level, 0, size, []),
            contest=id_,
            tree=level,
            size=size,
            length=0,
            start=0,
            end=size,
            leaf="",
            place=place,
        )
        contest = Contest(id_, level, group, above, size, place, root.id)
        contest = replace(contest, disputes=contest.disputes.set(root.id, root))
        self.contests = self.contests.set(id_, contest)
        if above:
            parent = self.contests[above]
            self._put(replace(parent, below=(*parent.below, id_)))

    def add_claim(self, contest_id: bytes, root: bytes, side: bytes) -> None:
        """A claim joins a contest (on a ``side``, unless it is of the log), with a whole budget."""
        contest = self.contests[contest_id]
        claim = Claim(root, side, self.genesis.clocks.budget, self.now)
        index = len(contest.claims)
        contest = replace(
            contest,
            claims=(*contest.claims, claim),
            index=contest.index.set(root, index),
            live=contest.live | 1 << index,
        )
        if side:
            known = contest.sides[side]
            known = replace(known, members=known.members | 1 << index)
            contest = replace(contest, sides=contest.sides.set(side, known))
        self._put(contest)
        self.loads = self.loads.set(contest.group, self.loads[contest.group] + 1)
        self._join(contest_id, contest.root, root, 1 << index)

    def _put(self, contest: Contest) -> None:
        self.contests = self.contests.set(contest.id, contest)

    def _put_dispute(self, dispute: Dispute) -> None:
        contest = self.contests[dispute.contest]
        asking = contest.asking
        if dispute.asks:
            asking = asking.set(dispute.id, True)
        elif dispute.id in asking:
            asking = asking.delete(dispute.id)
        disputes = contest.disputes.set(dispute.id, dispute)
        self._put(replace(contest, disputes=disputes, asking=asking))

    # --- the way down

    def _join(self, contest_id: bytes, dispute_id: bytes, value: bytes, claims: int) -> None:
        """Claims come to a dispute, where they have ``value``; then on, if more is known."""
        dispute = self.contests[contest_id].disputes[dispute_id]
        found = dispute.classes.get(value) or Class(0)
        if found.mask | claims == found.mask:
            return
        items = None if dispute.leaf else self._find_items(dispute, value)
        found = Class(found.mask | claims, found.asked, items)
        if dispute.id == dispute.tensor:
            dispute = replace(dispute, ready=self.now + self._compute_replays(contest_id))
        self._put_dispute(replace(dispute, classes=dispute.classes.set(value, found)))
        self._dirty[contest_id, dispute_id] = True
        if items is not None:
            self._part(contest_id, dispute_id, value)
        elif dispute.leaf:
            self._arrive(contest_id, dispute_id, value)

    def learn(self, fact: bytes, items: tuple[bytes, ...]) -> None:
        """A fact is there: whoever waited for it goes on."""
        question = self.asked[fact]
        self.facts = self.facts.set(fact, items)
        for contest, dispute in question.where:
            self._clear(contest, dispute, [question.value], known=True)
            self._part(contest, dispute, question.value)
        self.asked = self.asked.delete(fact)

    def _part(self, contest_id: bytes, dispute_id: bytes, value: bytes) -> None:
        """A class of which the items are known parts with the others of which they are."""
        contest = self.contests[contest_id]
        dispute = contest.disputes[dispute_id]
        mine = dispute.classes[value].items
        claims = dispute.classes[value].mask & contest.live
        if not claims or mine is None:
            return
        allies = contest.find_allies(claims)
        parted: dict[int, dict[bytes, int]] = {}
        for _, rival in sorted(dispute.classes.items()):  # who comes where first is told by no map
            live = rival.mask & contest.live
            if rival.items is None or rival.items == mine or not live & ~allies:
                continue
            at = _find_difference(mine, rival.items)
            classes = parted.setdefault(at, {mine[at]: claims})
            item = rival.items[at]
            classes[item] = classes.get(item, 0) | live
        for at, classes in parted.items():
            below = self._open_below(dispute, at, mine[:at])
            there = self.contests[contest_id].disputes[below].classes
            for item, members in classes.items():
                known = there.get(item)
                if known is None or members & ~known.mask:
                    self._join(contest_id, below, item, members)

    def _find_items(self, dispute: Dispute, value: bytes) -> tuple[bytes, ...] | None:
        """What is under a hash, if it is known; of a chunk its elements."""
        items = self.facts.get(compute_fact_id(dispute, value))
        if items is not None and dispute.tree == "chunks" and dispute.end - dispute.start == 1:
            return _cut(items[0], self.graph.get_width(dispute.place.node))
        return items

    def _open_below(self, dispute: Dispute, at: int, agreed: Sequence[bytes]) -> bytes:
        """The dispute about item ``at`` of those below, which begins at the first need."""
        is_element = dispute.tree == "chunks" and dispute.end - dispute.start == 1
        if is_element:
            start = dispute.start * (CHUNK_LENGTH // self.graph.get_width(dispute.place.node)) + at
            end = start + 1
        else:
            ranges = compute_ranges(dispute.start, dispute.end, get_depth(self.genesis))
            start, end = ranges[at]
        id_ = compute_dispute_id(dispute.id, dispute.tree, start, end, [*agreed])
        contest = self.contests[dispute.contest]
        if id_ in contest.disputes:
            return id_
        leaf: Leaf = ""
        if is_element:
            leaf = "element"
        elif end - start == 1 and dispute.tree != "chunks":
            leaf = _LEAVES[dispute.tree]
        place = self._locate(contest, dispute, leaf, start)
        below = replace(
            dispute, id=id_, start=start, end=end, leaf=leaf, place=place, classes=Map()
        )
        self._put_dispute(below)
        return id_

    def _locate(self, contest: Contest, dispute: Dispute, leaf: Leaf, index: int) -> Place:
        place = dispute.place
        if leaf == "record":
            return Place(step=index + 1)
        if leaf == "digest":
            base = get_base_step(self.genesis.commit_every, contest.place.step)
            offset, node = divmod(index, self.genesis.nodes)
            return Place(step=base + 1 + offset, node=node)
        if leaf == "element":
            return replace(place, chunk=dispute.start, element=index)
        if leaf == "state":
            return replace(place, block=index)
        return place

    def _arrive(self, contest_id: bytes, dispute_id: bytes, value: bytes) -> None:
        """A class has come to its leaf: what is no content of one falls."""
        dispute = self.contests[contest_id].disputes[dispute_id]
        claims = dispute.classes[value].mask
        if not self._is_sound(dispute, value):
            self.fall(contest_id, claims, "malformed", dispute.place)
        elif dispute.leaf == "digest":
            self._join(contest_id, self._open_chunks(dispute), value, claims)

    def _is_sound(self, dispute: Dispute, value: bytes) -> bool:
        if dispute.leaf == "record":
            return _is_record(self.genesis, value, dispute.place.step)
        if dispute.leaf == "digest":
            return len(value) == HASH
        if dispute.leaf == "state":
            return len(value) == 8 * self.graph.measure_fold(dispute.place.node)[1]
        return True

    def _open_chunks(self, dispute: Dispute) -> bytes:
        """Digests differ: on in the tensor's own tree."""
        node = dispute.place.node
        size = self.graph.count_chunks(node)
        id_ = compute_dispute_id(dispute.id, "chunks", 0, size, [])
        contest = self.contests[dispute.contest]
        if id_ not in contest.disputes:
            self._put(replace(contest, tensors=(*contest.tensors, id_)))
            below = Dispute(
                id=id_,
                contest=dispute.contest,
                tree="chunks",
                size=size,
                length=self.graph.get_length(node),
                start=0,
                end=size,
                leaf="",
                place=dispute.place,
                tensor=id_,
            )
            self._put_dispute(below)
        return id_

    def rule(self, contest_id: bytes, dispute_id: bytes, after: bytes) -> None:
        """The referee has computed what stands at a dispute's leaf: all else there falls."""
        dispute = self.contests[contest_id].disputes[dispute_id]
        self._clear(contest_id, dispute_id, list(dispute.classes), known=False)
        dispute = self.contests[contest_id].disputes[dispute_id]
        self._put_dispute(replace(dispute, ruling=after))
        self._dirty[contest_id, dispute_id] = True

    # --- what is asked

    def settle(self) -> None:
        """Work out all that follows, until nothing more does."""
        while self._dirty or self._falling:
            # Falls first: what falls now asks for nothing, and falls together with what it decides.
            if self._falling:
                self._let_fall()
                continue
            contest, dispute = next(iter(self._dirty))
            del self._dirty[contest, dispute]
            self._ask(self.contests[contest].disputes[dispute])
        if self.ends < 0 and self.groups:
            self._check_groups()
            if self._dirty:
                self.settle()

    def _ask(self, dispute: Dispute) -> None:
        """Have asked in a dispute what its rivals need, and nothing else."""
        contest = self.contests[dispute.contest]
        live = {value: found.mask & contest.live for value, found in dispute.classes.items()}
        everyone = 0
        for claims in live.values():
            everyone |= claims
        needed = {
            value for value, claims in live.items() if contest.crosses(claims, everyone & ~claims)
        }
        if dispute.leaf == "digest":
            return
        if dispute.leaf == "record" or (
            dispute.leaf == "element" and self._count_blocks(dispute) > 1
        ):
            self._need_sides(contest, dispute, live, needed)
            return
        if dispute.ruling is not None:
            for value, claims in live.items():
                if value != dispute.ruling:
                    self.fall(contest.id, claims, "refuted", dispute.place)
            return
        lapsed = [
            value for value, found in dispute.classes.items() if found.asked and value not in needed
        ]
        if lapsed:
            self._clear(contest.id, dispute.id, lapsed, known=False)
        for value in sorted(needed):
            found = dispute.classes[value]
            if found.known:
                continue
            if not dispute.leaf and self._find_items(dispute, value) is not None:
                # It was learnt elsewhere while nobody asked here.
                self._clear(contest.id, dispute.id, [value], known=True)
                self._part(contest.id, dispute.id, value)
            elif live[value] & ~found.owing:
                self._raise(contest.id, dispute.id, value, live[value] & ~found.owing)

    def _raise(self, contest_id: bytes, dispute_id: bytes, value: bytes, claims: int) -> None:
        """Ask claims of a class for the items under its hash, or for the opening of its dispute."""
        dispute = self.contests[contest_id].disputes[dispute_id]
        due = self._compute_start(dispute) + self._compute_grace(dispute)
        found = dispute.classes[value]
        found = replace(found, asked=(*found.asked, (claims, due)))
        self._put_dispute(replace(dispute, classes=dispute.classes.set(value, found)))
        self._plan(Event(due, "due", contest_id, dispute_id, value))
        here = (contest_id, dispute_id)
        if dispute.leaf:
            limit = self.genesis.leaf_bytes
            self.asked = self.asked.set(dispute_id, Question(b"", (here,), limit))
            return
        about = compute_fact_id(dispute, value)
        known = self.asked.get(about)
        where = () if known is None else known.where
        if here not in where:
            where = (*where, here)
        self.asked = self.asked.set(about, Question(value, where, self._compute_limit(dispute)))

    def _compute_limit(self, dispute: Dispute) -> int:
        ranges = compute_ranges(dispute.start, dispute.end, get_depth(self.genesis))
        return _HEAD + sum(_ITEM if end - start > 1 else _LEAF for start, end in ranges)

    def _compute_start(self, dispute: Dispute) -> int:
        """From when on an answer can be expected of every claim in a dispute.

        Not before whoever stands for a claim had the time to trace what is in dispute, even where
        others made the claim, and answered for it all the way here, before that.
        """
        contest = self.contests[dispute.contest]
        start = max(self.now, contest.until)
        return max(start, contest.disputes[dispute.tensor].ready) if dispute.tensor else start

    def _compute_grace(self, dispute: Dispute) -> int:
        """How long an answer may take when nothing is late: more, the more may be asked at once."""
        clocks = self.genesis.clocks
        load = self.loads[self.contests[dispute.contest].group]
        return clocks.grace + load * (clocks.opening if dispute.leaf else clocks.answer)

    def _compute_replays(self, contest_id: bytes) -> int:
        """How long one machine may take to trace the interval of a tensor once more.

        It may be at work on that interval, and each other rival may have one that was asked before;
        what is asked about one interval is traced together.
        """
        rivals = self._count_rivals(self.contests[contest_id].group)
        return self.genesis.clocks.replay * (max(1, rivals) + 1)

    def _count_rivals(self, group: bytes) -> int:
        return self.contests[group].live.bit_count() - 1

    def _clear(
        self, contest_id: bytes, dispute_id: bytes, values: Iterable[bytes], *, known: bool
    ) -> None:
        """Nothing is asked of these classes any more; what they were late by is spent."""
        contest = self.contests[contest_id]
        dispute = contest.disputes[dispute_id]
        classes, late = dispute.classes, 0
        for value in values:
            found = classes[value]
            late |= sum(claims for claims, due in found.asked if due < self.now)
            if found.asked and not dispute.leaf and not known:
                self._withdraw(dispute, value)
            items = self._find_items(dispute, value) if known else found.items
            classes = classes.set(value, Class(found.mask, (), items))
        if late & contest.live:
            self._charge(contest, late & contest.live)
        dispute = replace(dispute, classes=classes)
        self._put_dispute(dispute)
        if dispute.leaf and not dispute.asks and dispute_id in self.asked:
            self.asked = self.asked.delete(dispute_id)

    def _withdraw(self, dispute: Dispute, value: bytes) -> None:
        about = compute_fact_id(dispute, value)
        question = self.asked[about]
        where = tuple(at for at in question.where if at != (dispute.contest, dispute.id))
        if where:
            self.asked = self.asked.set(about, question._replace(where=where))
        else:
            self.asked = self.asked.delete(about)

    def _charge(self, contest: Contest, claims: int) -> None:
        """Take what ran on these claims' clocks until now off their budgets."""
        changed = list(contest.claims)
        for claim, due in contest.find_due(claims, self.now).items():
            found = changed[claim]
            ran = self.now - max(due, found.mark)
            if ran > 0:
                changed[claim] = replace(found, left=found.left - ran, mark=self.now)
        self._put(replace(self.contests[contest.id], claims=tuple(changed)))

    # --- sides

    def _need_sides(
        self, contest: Contest, dispute: Dispute, live: Mapping[bytes, int], needed: set[bytes]
    ) -> None:
        """Have a contest of sub-claims decide a dispute, a window for each side that is needed.

        Claims that come to a side later have a window of their own, which is the side's then, and
        so have its sub-claims their budgets: nobody could answer for the new ones before.
        """
        if dispute.id not in self.contests:
            if not needed:
                return
            self._nest(contest, dispute)
        below, renewed = self.contests[dispute.id], 0
        for value in sorted(live):
            id_ = compute_side_id(dispute.id, value)
            side = below.sides.get(id_)
            if value not in needed:
                if side is not None and side.closes >= 0:
                    below = replace(below, sides=below.sides.set(id_, replace(side, closes=-1)))
                continue
            if side is None:
                side = Side(value)
                self.sides = self.sides.set(id_, below.id)
            if side.closes < 0 or live[value] & ~side.backed:
                closes = self._compute_start(dispute) + self._compute_window(below)
                side = replace(side, backed=live[value], closes=closes)
                until = max(below.until, closes)
                below = replace(below, sides=below.sides.set(id_, side), until=until)
                self._plan(Event(closes, "window", below.id, id_, b""))
                renewed |= side.members & below.live
        self._put(self._renew(below, renewed) if renewed else below)

    def _renew(self, contest: Contest, claims: int) -> Contest:
        """Sub-claims that others stand for now have their whole budgets again."""
        grace = self._compute_grace(contest.disputes[contest.root])
        left, mark = self.genesis.clocks.budget, contest.until + grace
        changed = list(contest.claims)
        for claim in list_bits(claims):
            changed[claim] = replace(changed[claim], left=left, mark=mark)
        return replace(contest, claims=tuple(changed))

    def _nest(self, contest: Contest, dispute: Dispute) -> None:
        level: Level = "trace" if contest.level == "log" else "terms"
        if level == "trace":
            base = get_base_step(self.genesis.commit_every, dispute.place.step)
            size = (dispute.place.step - base) * self.genesis.nodes
        else:
            size = self._count_blocks(dispute)
        self._add_contest(dispute.id, level, contest.group, contest.id, size, dispute.place)

    def _compute_window(self, contest: Contest) -> int:
        """How long sub-claims may take: a trace longer where there may be others to trace first."""
        clocks = self.genesis.clocks
        if contest.level == "trace":
            return clocks.trace + clocks.replay * max(0, self._count_rivals(contest.group) - 1)
        return clocks.terms + clocks.answer * self.loads[contest.group]

    def _count_blocks(self, dispute: Dispute) -> int:
        return self.graph.measure_fold(dispute.place.node)[0]

    def _check_side(self, contest: Contest, side_id: bytes) -> None:
        """A side without sub-claims whose window is over falls, with all that it stands for."""
        side = contest.sides[side_id]
        over = 0 <= side.closes < self.now or (self.final and side.closes == self.now)
        if not over or side.members & contest.live:
            return
        above = self.contests[contest.above]
        self.fall(above.id, side.backed, "undefended", above.disputes[contest.id].place)

    # --- falls

    def fall(self, contest_id: bytes, claims: int, reason: Reason, place: Place) -> None:
        """Have claims fall, together with all others of this moment."""
        if claims & self.contests[contest_id].live:
            self._falling.append(Falling(contest_id, claims, reason, place))

    def _let_fall(self) -> None:
        falling, self._falling = self._falling, []
        found: dict[bytes, dict[int, Fall]] = {}
        for fall in falling:
            contest = self.contests[fall.contest]
            for index in list_bits(fall.claims & contest.live):
                falls = found.setdefault(contest.id, {})
                if index not in falls:
                    falls[index] = self._find_fall(contest, index, fall)
        for contest_id, falls in found.items():
            self._drop(self.contests[contest_id], falls)
        for contest_id, falls in found.items():
            contest, gone = self.contests[contest_id], sum(1 << index for index in falls)
            for dispute in sorted(contest.asking):  # so that the agenda has one shape
                if any(found.mask & gone for found in contest.disputes[dispute].classes.values()):
                    self._dirty[contest_id, dispute] = True
            for side in sorted(contest.sides):
                self._check_side(contest, side)
            for below in contest.below:
                self._dirty[contest_id, below] = True
                self._drop_moot(contest, self.contests[below])

    def _drop(self, contest: Contest, falls: Mapping[int, Fall]) -> None:
        changed = list(contest.claims)
        for index, how in falls.items():
            root = changed[index].root
            changed[index] = replace(changed[index], fall=how)
            if contest.level == "log":
                self.logs = self.logs.set(root, LogClaim(self.logs[root].order, how))
        live = contest.live & ~sum(1 << index for index in falls)
        self._put(replace(contest, claims=tuple(changed), live=live))
        load = self.loads[contest.group] - len(falls)
        self.loads = self.loads.set(contest.group, load)

    def _drop_moot(self, contest: Contest, below: Contest) -> None:
        """Sub-claims of a side fall when there is nothing left that they stand for."""
        dispute = contest.disputes[below.id]
        for side in below.sides.values():
            if not dispute.classes[side.value].mask & contest.live:
                self.fall(below.id, side.members, "moot", dispute.place)

    def _find_fall(self, contest: Contest, index: int, fall: Falling) -> Fall:
        """How a claim falls: as its sub-claims did, if it had any.

        All of it as things were before those fell that fall together with it. Of several the one
        that the claim's first backer stood for counts, else one that was refuted: others'
        sub-claims may be false in other places.
        """
        here = Fall(fall.reason, fall.place, self.now)
        if fall.reason != "undefended":
            return here
        root = contest.claims[index].root
        scope = self.id if contest.level == "log" else contest.id
        author = min(self.backers[scope, root].items(), key=lambda item: item[1])[0]
        inner = []
        for below in map(self.contests.__getitem__, contest.below):
            dispute = contest.disputes[below.id]
            for side in below.sides.values():
                backed = dispute.classes[side.value].mask >> index & 1
                if not backed or side.members & below.live:
                    continue  # where somebody's sub-claim stands, it has not fallen
                for member in list_bits(side.members):
                    claim = below.claims[member]
                    if claim.fall is not None and claim.fall.reason != "moot":
                        own = author in self.backers[below.id, claim.root]
                        inner.append((own, claim.fall.reason == "refuted", claim.fall))
        if not inner:
            return here
        *_, chosen = max(inner, key=lambda item: item[:2])
        return replace(chosen, at=self.now)

    def _check_groups(self) -> None:
        """When no group has rivals left: the next round of those that stand, or the end."""
        if self._falling or any(self.contests[group].live.bit_count() > 1 for group in self.groups):
            return
        standing = [root for root, claim in self.logs.items() if claim.fall is None]
        self._start_round(sorted(standing))

    # --- what was done

    def note_answer(self, answer: Answer) -> None:
        """Remember who did some work."""
        self.answers = Chain(answer, self.answers)

    def note_bond(self, bond: BondRecord) -> None:
        """Remember a bond."""
        self.bonds = Chain(bond, self.bonds)


def get_depth(genesis: Genesis) -> int:
    """Levels of a tree that one answer goes down: log2 of the arity."""
    return genesis.arity.bit_length() - 1


def _find_difference(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """The first item in which two sequences differ, which they do."""
    at = 0
    while mine[at] == theirs[at]:
        at += 1
    return at


@lru_cache(1 << 10)
def _cut(chunk: bytes, width: int) -> tuple[bytes, ...]:
    """The elements of a chunk."""
    return tuple(chunk[at : at + width] for at in range(0, len(chunk), width))


def _is_record(genesis: Genesis, data: bytes, step: int) -> bool:
    try:
        record = decode_record(data)
    except EncodingError:
        return False
    return record.step == step and bool(record.state_root) == (step % genesis.commit_every == 0)
