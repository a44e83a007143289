//! Nodes that are done together: which may be, without a value being read before it is there.

use std::cell::Cell;

use super::program::Program;
use super::run::MOST_INPUTS;
use crate::ops::Kernel;

/// Elements of a row beyond which rows are not made longer: a value of some rows should stay in a
/// core's first caches.
const LONG_ROW: usize = 4096;
/// Nodes of a run: those of models have some tens, but for sums over all parameters.
const MOST_MEMBERS: usize = 256;
/// Values and readers that are looked at to form runs, after which none grows any more: a model of
/// 24 layers, its batch in eight parts, has a million. In other graphs it would be the square of
/// their nodes.
const MOST_LOOKS: usize = 1 << 24;

/// A partition of the nodes into groups that can be done one after the other, each as a whole.
pub(super) struct Groups<'a> {
    program: &'a Program,
    /// The group of each node that is no view.
    of: Vec<usize>,
    groups: Vec<Group>,
    /// Nodes that must be done before a node although it reads nothing of theirs: they read what it
    /// overwrites.
    before: Vec<Vec<usize>>,
    /// The same, the other way round.
    behind: Vec<Vec<usize>>,
    /// For each node, how many nodes up to it do not work by rows: mostly products.
    heavy: Vec<usize>,
    /// Values that a step leaves behind.
    kept: Vec<bool>,
    /// Values and readers that were looked at so far.
    looks: Cell<usize>,
}

#[derive(Default)]
struct Group {
    /// In their order.
    members: Vec<usize>,
    /// The last node of the group and of all that it depends on.
    reach: usize,
    /// Rows that all members fall into; 0 if they are no run.
    rows: usize,
    /// Elements of the largest value, and of the shortest row of a member that has rows.
    largest: usize,
    shortest: usize,
}

impl Group {
    fn last(&self) -> usize {
        self.members.last().copied().unwrap_or(0)
    }
}

impl<'a> Groups<'a> {
    /// The groups of a plan whose nodes are done with the node `last` says; nodes in `alone` do not
    /// become part of a run.
    pub fn new(
        program: &'a Program,
        last: &[usize],
        alone: &[bool],
        before: Vec<Vec<usize>>,
        kept: Vec<bool>,
    ) -> Self {
        let count = program.kernels.len();
        let mut behind = vec![Vec::new(); count];
        for (node, before) in before.iter().enumerate() {
            for &first in before {
                behind[first].push(node);
            }
        }
        let mut groups = Self {
            program,
            of: last.to_vec(),
            groups: (0..count).map(|_| Group::default()).collect(),
            before,
            behind,
            heavy: vec![0; count],
            kept,
            looks: Cell::new(0),
        };
        let mut heavy = 0;
        for node in 0..count {
            let own = groups.rows_of(node);
            heavy += usize::from(own.is_none() && !program.kernels[node].is_view());
            groups.heavy[node] = heavy;
            let group = &mut groups.groups[last[node]];
            group.members.push(node);
            if let Some((rows, largest, shortest)) = own
                && last[node] == node
                && !alone[node]
            {
                (group.rows, group.largest, group.shortest) = (rows, largest, shortest);
            }
        }
        groups
    }

    /// Rows of a node that works by rows, elements of its largest value, and of one of its rows.
    fn rows_of(&self, node: usize) -> Option<(usize, usize, usize)> {
        let program = self.program;
        let (sizes, out) = (program.sizes_of(node), program.forms[node].size());
        let bands = program.bands_of(node)?;
        if sizes.len() > MOST_INPUTS {
            return None;
        }
        let banded = |i: &usize| bands.is_banded(*i);
        let largest = (0..sizes.len())
            .filter(banded)
            .map(|i| sizes[i])
            .fold(if bands.sums { 0 } else { out }, usize::max);
        let per_row = largest.checked_div(bands.rows)?;
        let shortest = if per_row == 1 { usize::MAX } else { per_row };
        Some((bands.rows, largest, shortest))
    }

    /// Makes runs of nodes that work by rows.
    pub fn form_runs(&mut self) {
        for node in 0..self.program.kernels.len() {
            let group = self.of[node];
            if self.program.kernels[node].is_view() {
                continue;
            }
            let reach = self.preds(group).map(|pred| self.groups[pred].reach);
            self.groups[group].reach = reach.fold(node, usize::max);
            if self.groups[group].rows == 0 || self.groups[group].members != [node] {
                continue;
            }
            let mut sources: Vec<usize> = (0..self.program.inputs[node].len())
                .filter(|&i| self.is_banded(node, i))
                .map(|i| self.program.roots[self.program.inputs[node][i]])
                .collect();
            sources.sort_by_key(|&value| std::cmp::Reverse(self.groups[self.of[value]].last()));
            for value in sources {
                if self.is_worth_while(value, node) {
                    self.try_join(self.of[value], self.of[node]);
                }
            }
        }
    }

    /// The runs, each the list of its nodes in their order, and how many rows it has.
    pub fn runs(&self) -> impl Iterator<Item = (&[usize], usize)> {
        self.groups
            .iter()
            .filter(|group| group.rows > 0 && group.members.len() > 1)
            .map(|group| (group.members.as_slice(), group.rows))
    }

    /// The last nodes of all groups, in an order in which the groups can be done.
    pub fn order(&self) -> Vec<usize> {
        let count = self.groups.len();
        let (mut waits, mut users) = (vec![0usize; count], vec![Vec::new(); count]);
        let is_real = |group: &usize| !self.groups[*group].members.is_empty();
        for group in (0..count).filter(is_real) {
            let mut preds: Vec<usize> = self.preds(group).collect();
            preds.sort_unstable();
            preds.dedup();
            waits[group] = preds.len();
            for pred in preds {
                users[pred].push(group);
            }
        }
        // A run as soon as may be: some of what it puts out is read soon after its first node.
        let place = |group: usize| {
            let members = &self.groups[group].members;
            let is_run = self.groups[group].rows > 0;
            let at = if is_run {
                members.first()
            } else {
                members.last()
            };
            std::cmp::Reverse((at.copied().unwrap_or(0), group))
        };
        let mut ready: std::collections::BinaryHeap<_> = (0..count)
            .filter(is_real)
            .filter(|&group| waits[group] == 0)
            .map(place)
            .collect();
        let mut order = Vec::with_capacity(count);
        while let Some(std::cmp::Reverse((_, group))) = ready.pop() {
            order.push(self.groups[group].last());
            for &user in &users[group] {
                waits[user] -= 1;
                if waits[user] == 0 {
                    ready.push(place(user));
                }
            }
        }
        order
    }

    /// The groups, other than itself, that must be done before a group.
    fn preds(&self, group: usize) -> impl Iterator<Item = usize> {
        let members = self.groups[group].members.iter();
        members
            .flat_map(|&node| {
                let read = self.program.inputs[node].iter();
                read.map(|&input| self.program.roots[input])
                    .chain(self.before[node].iter().copied())
            })
            .map(|node| self.of[node])
            .filter(move |&pred| pred != group)
    }

    fn is_banded(&self, node: usize, input: usize) -> bool {
        let bands = self.program.bands_of(node);
        bands.is_some_and(|bands| bands.is_banded(input))
    }

    /// Nodes of a run are done at about the same time: a value that is put out early waits for its
    /// readers in memory, unless it is not larger than the one that need not wait then. None is put
    /// out late for the sake of a node that reads what comes later: what is read early would wait.
    fn is_worth_while(&self, value: usize, node: usize) -> bool {
        let group = self.of[value];
        let last = self.groups[group].last().min(node);
        let near = self.heavy[node] == self.heavy[last];
        let is_there = |&input: &usize| {
            let source = self.of[self.program.roots[input]];
            source == group || self.groups[source].last() <= last
        };
        let bytes = |value: usize| self.program.forms[value].byte_len();
        let goes = || {
            !self.kept[value]
                && self.program.readers[value]
                    .iter()
                    .all(|&reader| reader == node || self.of.get(reader) == Some(&group))
                && bytes(node) <= bytes(value)
                && self.program.inputs[node].iter().all(is_there)
        };
        near || goes()
    }

    /// Makes one run of two, if that can be.
    fn try_join(&mut self, a: usize, b: usize) {
        if a == b || self.groups[a].rows == 0 || self.groups[b].rows == 0 {
            return;
        }
        let (x, y) = (&self.groups[a], &self.groups[b]);
        if x.members.len() + y.members.len() > MOST_MEMBERS || self.looks.get() >= MOST_LOOKS {
            return;
        }
        let rows = gcd(x.rows, y.rows);
        let (largest, shortest) = (x.largest.max(y.largest), x.shortest.min(y.shortest));
        if largest / rows > LONG_ROW.max(shortest) || self.is_circle(a, b) {
            return;
        }
        let moved = std::mem::take(&mut self.groups[a]);
        self.look(moved.members.len());
        for &node in &moved.members {
            self.of[node] = b;
        }
        let group = &mut self.groups[b];
        group.members.extend(moved.members);
        group.members.sort_unstable();
        (group.rows, group.largest, group.shortest) = (rows, largest, shortest);
        group.reach = group.reach.max(moved.reach);
        // Whoever reads what was moved reaches as far.
        let reach = group.reach;
        let mut open = vec![b];
        while let Some(group) = open.pop() {
            for at in 0..self.groups[group].members.len() {
                let node = self.groups[group].members[at];
                for &user in self.program.readers[node].iter().chain(&self.behind[node]) {
                    self.look(1);
                    let Some(&user) = self.of.get(user) else {
                        continue;
                    };
                    if user != group && (1..reach).contains(&self.groups[user].reach) {
                        self.groups[user].reach = reach;
                        open.push(user);
                    }
                }
            }
        }
    }

    /// Would the two as one wait for themselves? So it is where one needs all of what a member of
    /// the other puts out, or what a third makes of it.
    fn is_circle(&self, a: usize, b: usize) -> bool {
        let inside = |group: usize| group == a || group == b;
        let first = self.groups[a].last().min(self.groups[b].last());
        let mut seen = std::collections::HashSet::new();
        let mut open = Vec::new();
        for &node in self.groups[a].members.iter().chain(&self.groups[b].members) {
            self.look(1 + self.program.inputs[node].len());
            for (i, &input) in self.program.inputs[node].iter().enumerate() {
                let value = self.program.roots[input];
                if !inside(self.of[value]) {
                    open.push(self.of[value]);
                } else if !self.is_banded(node, i) || self.is_sum(value) {
                    return true;
                }
            }
            open.extend(self.before[node].iter().map(|&before| self.of[before]));
        }
        while let Some(group) = open.pop() {
            self.look(1);
            if inside(group) {
                return true;
            }
            if self.groups[group].reach >= first && seen.insert(group) {
                open.extend(self.preds(group));
            }
        }
        false
    }

    fn look(&self, count: usize) {
        self.looks.set(self.looks.get() + count);
    }

    fn is_sum(&self, node: usize) -> bool {
        matches!(self.program.kernels[node], Kernel::ColumnSum | Kernel::Sum)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::program::Program;
    use super::*;
    use crate::number::Dtype;
    use crate::ops::Form;

    /// A program of nodes on 8 numbers each, none of which is a state.
    fn program(nodes: Vec<(Kernel, Vec<usize>)>) -> Program {
        let count = nodes.len();
        let mut users = vec![Vec::new(); count];
        for (node, (_, inputs)) in nodes.iter().enumerate() {
            for &input in inputs {
                users[input].push(node);
            }
        }
        let (kernels, inputs) = nodes.into_iter().unzip();
        Program {
            names: vec![String::new(); count],
            kernels,
            forms: vec![Form::new(Dtype::I16, vec![8]).unwrap(); count],
            inputs,
            readers: users.clone(),
            users,
            roots: (0..count).collect(),
            commit_only: vec![false; count],
            factors: vec![None; count],
            counted: (0..count).collect(),
            ..Program::default()
        }
    }

    fn form_runs(program: &Program) -> Groups<'_> {
        let count = program.kernels.len();
        let last: Vec<usize> = (0..count).collect();
        let none = vec![false; count];
        let before = vec![Vec::new(); count];
        let mut groups = Groups::new(program, &last, &none, before, none.clone());
        groups.form_runs();
        groups
    }

    fn add(a: usize, b: usize) -> (Kernel, Vec<usize>) {
        (Kernel::Add { shifts: (0, 0) }, vec![a, b])
    }

    #[test]
    fn a_long_chain_becomes_many_runs_in_linear_time() {
        let count = 20_000;
        let chain = (1..count).map(|node| (Kernel::Relu, vec![node - 1]));
        let program = program([(Kernel::Sum, vec![])].into_iter().chain(chain).collect());
        let groups = form_runs(&program);
        let lengths: Vec<usize> = groups.runs().map(|(members, _)| members.len()).collect();
        assert!(lengths.iter().all(|&length| length <= MOST_MEMBERS));
        assert_eq!(lengths.len(), (count - 1).div_ceil(MOST_MEMBERS));
        assert!(groups.looks.get() < 4 * count * MOST_MEMBERS);
        assert_eq!(
            groups.order(),
            (0..count)
                .filter(|&node| is_last(&groups, node))
                .collect::<Vec<_>>()
        );
    }

    fn is_last(groups: &Groups<'_>, node: usize) -> bool {
        groups.groups[groups.of[node]].last() == node
    }

    /// Nodes of two kinds by turns, each of which reads what lies far behind: every join would
    /// have all groups between looked at.
    #[test]
    fn looks_are_bounded_in_any_graph() {
        let half = 20_000;
        let mut nodes = vec![(Kernel::Sum, vec![])];
        nodes.extend((1..half).map(|node| (Kernel::Relu, vec![node / 300])));
        nodes.extend((half..2 * half).map(|node| add(node - 1, node - half)));
        let program = program(nodes);
        let groups = form_runs(&program);
        // The last join may be one that looks at all that there is.
        assert!(
            groups.looks.get() < MOST_LOOKS + 4 * 2 * half,
            "{}",
            groups.looks.get()
        );
        assert_eq!(
            groups.order().len(),
            groups
                .groups
                .iter()
                .filter(|g| !g.members.is_empty())
                .count()
        );
    }
}
