//! The order of work and the place of every value, fixed before the first step.
//!
//! A *plain* plan computes node by node, each output in a place of its own, and leaves the state
//! untouched: traces. A *fused* plan merges nodes where the graph proves that nobody else reads
//! what lies between them, and updates the state in place where nobody reads the old value later.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use super::groups::Groups;
use super::program::{NEXT_STEP, Program};
use super::run::{MOST_INPUTS, Read, Run};
use crate::number::{Dtype, Rounding};
use crate::ops::Kernel;
use crate::ops::linear::{Factors, Product};
use crate::ops::optimizer::MomentumRule;
use crate::window::Window;

/// Bias (31 bits) plus accumulator (53 bits) must stay below 2^62 for the fused rescale.
const LEAST_BIAS_SHIFT: i64 = -29;
/// A position after all jobs.
const END: usize = usize::MAX;
/// Buffers that are looked at, over all values, for one that is free: a model of 24 layers has three
/// million. With n values at once it would be their square.
const MOST_TRIES: usize = 1 << 24;

/// One piece of work. Values are named by the node that puts them out.
#[derive(Debug)]
pub(super) struct Job {
    /// The last of the nodes that it does.
    pub node: usize,
    /// The values it reads; those which it overwrites come in `work`.
    pub inputs: Vec<usize>,
    pub work: Work,
    pub commit_only: bool,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A state, or a value under another name or shape: nothing to do.
    View,
    /// The node by itself.
    Node,
    /// matmul or a stack of them, add_bias?, rescale to int16, relu?. Inputs: a, b, bias?.
    Dense {
        factors: Factors,
        stack: usize,
        bias: Option<Rounding>,
        shift: i64,
        rescale: usize,
        relu: bool,
    },
    /// A product of patches, where nothing else is done with it. Inputs: a, b.
    Product(Factors),
    /// Nodes that work by rows, block by block.
    Run(Run),
    /// matmul, col2im. Inputs: a, b.
    Scatter { product: Product, window: Window },
    /// matmul, momentum, sgd_update, the last two in place. Inputs: a, b, rate.
    /// `velocity` is the node of the momentum.
    Update {
        factors: Factors,
        rule: MomentumRule,
        shift: i64,
        old_velocity: usize,
        old_weight: usize,
        velocity: usize,
    },
}

impl Work {
    /// The values that the job overwrites: their last reader is this job.
    fn overwrites(&self) -> Vec<usize> {
        match *self {
            Self::Update {
                old_velocity,
                old_weight,
                ..
            } => vec![old_velocity, old_weight],
            _ => vec![],
        }
    }
}

#[derive(Debug)]
pub(super) struct Plan {
    pub jobs: Vec<Job>,
    /// Buffer of each root node's value; `usize::MAX` for values that never exist.
    pub places: Vec<usize>,
    /// Bytes of each buffer. The first ones are the states'.
    pub buffers: Vec<usize>,
}

impl Plan {
    pub fn plain(program: &Program) -> Self {
        Chains::none(program, false).place(program)
    }

    pub fn fused(program: &Program) -> Self {
        let mut chains = Chains::none(program, true);
        for node in 0..program.kernels.len() {
            chains.form_dense(program, node);
            chains.form_scatter(program, node);
        }
        for node in 0..program.kernels.len() {
            chains.form_update(program, node);
            chains.form_product(program, node);
        }
        chains.form_runs(program);
        chains.place(program)
    }

    /// Bytes that it needs beside its buffers, with so many threads.
    pub fn scratch(&self, threads: usize) -> usize {
        let runs = self.jobs.iter().map(|job| match &job.work {
            Work::Run(run) => run.scratch(),
            _ => 0,
        });
        runs.max().unwrap_or(0) * threads
    }
}

/// Which nodes are done together.
struct Chains {
    fused: bool,
    /// Nodes whose result nobody sees: left out of a fused plan.
    idle: Vec<bool>,
    /// For each node, the last node of its chain: itself, if it is alone.
    last: Vec<usize>,
    /// For the last node of a chain, its work and its inputs.
    work: Vec<Option<(Work, Vec<usize>)>>,
    /// The last nodes of all chains, in the order in which they are done.
    order: Vec<usize>,
    /// Values that a chain overwrites: no other node that reads them may move to a later place.
    claimed: Vec<bool>,
}

impl Chains {
    fn none(program: &Program, fused: bool) -> Self {
        let count = program.kernels.len();
        Self {
            fused,
            idle: if fused {
                find_idle(program)
            } else {
                vec![false; count]
            },
            last: (0..count).collect(),
            work: (0..count).map(|_| None).collect(),
            order: (0..count).collect(),
            claimed: vec![false; count],
        }
    }

    /// As [`Self::only_user`], of a node or of what only gives it another shape.
    fn only_reader(program: &Program, mut node: usize, input: usize) -> Option<usize> {
        loop {
            match Self::only_user(program, node, 0).or(Self::only_user(program, node, input)) {
                Some(view) if matches!(program.kernels[view], Kernel::Reshape) => node = view,
                _ => return Self::only_user(program, node, input),
            }
        }
    }

    /// The only user of `node`, if it has just one and reads it just once, as its input `input`.
    /// One of many inputs is none: no such node is part of a chain.
    fn only_user(program: &Program, node: usize, input: usize) -> Option<usize> {
        let &[user] = program.users[node].as_slice() else {
            return None;
        };
        if program.inputs[user].len() > MOST_INPUTS {
            return None;
        }
        let places: Vec<usize> = (0..program.inputs[user].len())
            .filter(|&i| program.inputs[user][i] == node)
            .collect();
        (places == [input]).then_some(user)
    }

    fn merge(&mut self, nodes: &[usize], work: Work, inputs: Vec<usize>) {
        let Some(&last) = nodes.last() else { return };
        for &node in nodes {
            self.last[node] = last;
        }
        self.work[last] = Some((work, inputs));
    }

    fn form_dense(&mut self, program: &Program, start: usize) {
        let (factors, stack) = match (program.factors[start], &program.kernels[start]) {
            (Some(factors), _) => (factors, 1),
            (_, &Kernel::BatchedMatmul { stack, product }) => (Factors::Matrices(product), stack),
            _ => return,
        };
        let mut nodes = vec![start];
        let mut inputs: Vec<usize> = program.inputs[start]
            .iter()
            .map(|&input| program.roots[input])
            .collect();
        let mut bias = None;
        let mut next = Self::only_reader(program, start, 0);
        if let Some(user) = next
            && let Kernel::AddBias { shift } = program.kernels[user]
            && shift >= LEAST_BIAS_SHIFT
            && program.sizes_of(user).get(1) == Some(&factors.product().n)
        {
            nodes.push(user);
            inputs.push(program.roots[program.inputs[user][1]]);
            bias = Some(Rounding::new(shift));
            next = Self::only_reader(program, user, 0);
        }
        let Some(rescale) = next else { return };
        let Kernel::Rescale {
            multiplier: 1,
            shift,
        } = program.kernels[rescale]
        else {
            return;
        };
        if program.forms[rescale].dtype != Dtype::I16 {
            return;
        }
        nodes.push(rescale);
        let relu = Self::only_reader(program, rescale, 0)
            .filter(|&user| matches!(program.kernels[user], Kernel::Relu));
        nodes.extend(relu);
        let relu = relu.is_some();
        self.merge(
            &nodes,
            Work::Dense {
                factors,
                stack,
                bias,
                shift,
                rescale,
                relu,
            },
            inputs,
        );
    }

    fn form_product(&mut self, program: &Program, node: usize) {
        if let Some(factors @ Factors::Patches { .. }) = program.factors[node]
            && self.last[node] == node
            && self.work[node].is_none()
            && !self.idle[node]
        {
            let inputs = program.inputs[node].iter();
            let inputs = inputs.map(|&input| program.roots[input]).collect();
            self.merge(&[node], Work::Product(factors), inputs);
        }
    }

    fn form_scatter(&mut self, program: &Program, start: usize) {
        let Some(Factors::Matrices(product)) = program.factors[start] else {
            return;
        };
        let Some(user) = Self::only_user(program, start, 0) else {
            return;
        };
        let Kernel::Col2im(window) = program.kernels[user] else {
            return;
        };
        // Done image by image, that is by rows of A, which must lie one after the other.
        if product.transpose_a {
            return;
        }
        let inputs = program.inputs[start]
            .iter()
            .map(|&input| program.roots[input])
            .collect();
        self.merge(&[start, user], Work::Scatter { product, window }, inputs);
    }

    /// Where the node `reader` is done; the next step comes after all.
    fn done_by(&self, reader: usize) -> usize {
        self.last.get(reader).copied().unwrap_or(NEXT_STEP)
    }

    fn form_update(&mut self, program: &Program, start: usize) {
        let Some(factors) = program.factors[start] else {
            return;
        };
        if self.last[start] != start {
            return;
        }
        let mut nodes = vec![start];
        let mut next = Self::only_user(program, start, 0).or(Self::only_user(program, start, 1));
        while let Some(user) = next
            && matches!(program.kernels[user], Kernel::Reshape)
        {
            nodes.push(user);
            next = Self::only_user(program, user, 0).or(Self::only_user(program, user, 1));
        }
        let Some(velocity) = next else { return };
        let Kernel::Momentum(rule) = program.kernels[velocity] else {
            return;
        };
        let reads = |user: usize, input: usize| program.roots[program.inputs[user][input]];
        let Some((weight, shift)) = program.users[velocity]
            .iter()
            .find_map(|&user| match program.kernels[user] {
                Kernel::SgdUpdate { shift } if program.inputs[user][1] == velocity => {
                    Some((user, shift))
                }
                _ => None,
            })
        else {
            return;
        };
        nodes.extend([velocity, weight]);
        let (old_velocity, old_weight) = (reads(velocity, 0), reads(weight, 0));
        let inputs = vec![reads(start, 0), reads(start, 1), reads(weight, 2)];
        let readers = |value: usize| program.readers[value].iter().copied();
        let legal = old_weight != velocity
            && old_weight != old_velocity
            && !inputs.contains(&old_velocity)
            && !inputs.contains(&old_weight)
            // The chain is done in the place of its last node: who reads its first result, reads
            // it after that, and whom it overwrites, nobody reads then.
            && readers(velocity).all(|reader| reader >= weight)
            && readers(old_velocity).all(|r| r == velocity || self.done_by(r) < weight)
            && readers(old_weight).all(|r| r == weight || self.done_by(r) < weight)
            // Nor does its first part, which is done later than in the graph, read what another
            // chain overwrites.
            && ![old_velocity, inputs[0], inputs[1]].iter().any(|&value| self.claimed[value]);
        if !legal {
            return;
        }
        self.claimed[old_velocity] = true;
        self.claimed[old_weight] = true;
        let work = Work::Update {
            factors,
            rule,
            shift,
            old_velocity,
            old_weight,
            velocity,
        };
        self.merge(&nodes, work, inputs);
    }

    /// Runs of what is left, and the order of all.
    fn form_runs(&mut self, program: &Program) {
        let count = program.kernels.len();
        let mut before = vec![Vec::new(); count];
        for (node, work) in self.work.iter().enumerate() {
            for value in work.iter().flat_map(|(work, _)| work.overwrites()) {
                let readers = program.readers[value].iter().copied();
                let others = readers.filter(|&reader| self.done_by(reader) != node);
                before[node].extend(others.filter(|&reader| reader < count));
            }
        }
        let kept = kept(program);
        let alone = self.idle.iter().zip(&self.work);
        let alone: Vec<bool> = alone.map(|(idle, work)| *idle || work.is_some()).collect();
        let mut groups = Groups::new(program, &self.last, &alone, before, kept.clone());
        groups.form_runs();
        for (members, rows) in groups.runs() {
            let is_seen = |value: usize| {
                let readers = &program.readers[value];
                let is_outside = |&reader: &usize| {
                    members.binary_search(&reader).is_err()
                        && !self.idle.get(reader).copied().unwrap_or(false)
                };
                kept[value] || readers.iter().any(is_outside)
            };
            let run = Run::new(program, members, rows, is_seen);
            let inputs = run.reads().into_keys().collect();
            self.merge(members, Work::Run(run), inputs);
        }
        self.order = groups.order();
    }

    /// The jobs in order, and a buffer for each value. In a fused plan, work is in place where
    /// nobody reads the old value any more.
    fn place(self, program: &Program) -> Plan {
        let mut jobs = Vec::new();
        let mut all_work = self.work;
        for node in self.order {
            let work = all_work[node].take();
            if self.last[node] != node || (self.idle[node] && work.is_none()) {
                continue;
            }
            let read = || {
                program.inputs[node]
                    .iter()
                    .map(|&input| program.roots[input])
                    .collect()
            };
            let (work, inputs) = work.unwrap_or_else(|| {
                let is_view = program.kernels[node].is_view();
                (if is_view { Work::View } else { Work::Node }, read())
            });
            jobs.push(Job {
                node,
                inputs,
                work,
                commit_only: program.commit_only[node],
            });
        }
        let mut last_use = vec![0; program.kernels.len()];
        let kept = kept(program);
        for (at, job) in jobs.iter().enumerate() {
            for &value in job.inputs.iter().chain(&job.work.overwrites()) {
                last_use[value] = at;
            }
        }
        for (value, _) in kept.iter().enumerate().filter(|&(_, &kept)| kept) {
            last_use[value] = END;
        }

        let states = program.state_nodes.iter().zip(&program.next_roots);
        let next_of: HashMap<usize, usize> = states.map(|(&old, &new)| (old, new)).collect();
        let mut lives = Lives::new(program);
        for (at, job) in jobs.iter().enumerate() {
            match job.work {
                Work::View => {}
                Work::Run(ref run) => {
                    let mut left = run.reads();
                    left.retain(|&old, _| last_use[old] == at);
                    let mut left: Vec<(usize, Read)> = left.into_iter().collect();
                    for value in run.writes() {
                        let until = last_use[value].max(at);
                        let over = left.iter().position(|&(old, read)| {
                            next_of.get(&old).is_none_or(|&next| next == value)
                                && run.may_overwrite(program, (old, read), value)
                        });
                        match over {
                            Some(old) => lives.hand_over(left.swap_remove(old).0, value, until),
                            None => {
                                let bytes = program.forms[value].byte_len();
                                lives.begin(value, bytes, at, until);
                            }
                        }
                    }
                }
                Work::Update {
                    old_velocity,
                    old_weight,
                    velocity,
                    ..
                } => {
                    lives.hand_over(old_velocity, velocity, last_use[velocity]);
                    lives.hand_over(old_weight, job.node, last_use[job.node]);
                }
                Work::Node | Work::Product(_) | Work::Dense { .. } | Work::Scatter { .. } => {
                    let from = job.inputs.first().copied().filter(|first| {
                        self.fused
                            && matches!(job.work, Work::Node)
                            && program.kernels[job.node].is_in_place()
                            && last_use[*first] == at
                            && !job.inputs[1..].contains(first)
                    });
                    let until = last_use[job.node].max(at);
                    match from {
                        Some(first) => lives.hand_over(first, job.node, until),
                        None => {
                            let bytes = program.forms[job.node].byte_len();
                            lives.begin(job.node, bytes, at, until);
                        }
                    }
                }
            }
        }
        let (places, buffers) = lives.assign();
        Plan {
            jobs,
            places,
            buffers,
        }
    }
}

/// The values that a step leaves behind: its record and the next state.
fn kept(program: &Program) -> Vec<bool> {
    let mut kept = vec![false; program.kernels.len()];
    let record = program.record;
    let recorded = [record.step, record.batch_digest, record.loss, record.root];
    for &value in program.next_roots.iter().chain(&recorded) {
        kept[value] = true;
    }
    kept
}

/// Nodes whose output reaches neither the record nor the next state nor a count of saturation.
fn find_idle(program: &Program) -> Vec<bool> {
    let record = program.record;
    let mut idle = vec![false; program.kernels.len()];
    for node in (0..idle.len()).rev() {
        let kernel = &program.kernels[node];
        let is_seen = matches!(kernel, Kernel::NextState { .. })
            || kernel.saturates()
            || [record.step, record.batch_digest, record.loss, record.root].contains(&node);
        idle[node] = !is_seen && program.users[node].iter().all(|&user| idle[user]);
    }
    idle
}

/// Values that need a place, and from which job to which.
struct Lives {
    /// Bytes of the states, whose buffers come first.
    states: Vec<usize>,
    lives: Vec<Life>,
    /// For each node, the state's buffer or, beyond those, the life that its value is part of.
    of: Vec<usize>,
}

/// A value, and those that take its place in turn.
struct Life {
    bytes: usize,
    first: usize,
    last: usize,
}

impl Lives {
    fn new(program: &Program) -> Self {
        let mut of = vec![END; program.kernels.len()];
        for (&node, buffer) in program.state_nodes.iter().zip(0..) {
            of[node] = buffer;
        }
        Self {
            states: program.states.iter().map(|s| s.form.byte_len()).collect(),
            lives: Vec::new(),
            of,
        }
    }

    fn begin(&mut self, value: usize, bytes: usize, first: usize, last: usize) {
        self.of[value] = self.states.len() + self.lives.len();
        self.lives.push(Life { bytes, first, last });
    }

    /// `to`, which is read until `last`, takes the place of `from`, which nobody reads any more.
    fn hand_over(&mut self, from: usize, to: usize, last: usize) {
        self.of[to] = self.of[from];
        let life = self.of[to].checked_sub(self.states.len());
        if let Some(life) = life.and_then(|life| self.lives.get_mut(life)) {
            life.last = life.last.max(last);
        }
    }

    /// The buffer of each node's value, and the bytes of each buffer.
    fn assign(self) -> (Vec<usize>, Vec<usize>) {
        let mut found = Buffers::new(&self.states);
        found.fill(&self.lives, MOST_TRIES);
        let states = self.states.len();
        let places = self.of.iter().map(|&of| match of.checked_sub(states) {
            Some(life) if of != END => found.of[life],
            _ => of,
        });
        (places.collect(), found.bytes)
    }
}

/// The buffers of lives.
struct Buffers {
    /// Bytes of each; the first are the states', which are for no others.
    bytes: Vec<usize>,
    states: usize,
    /// The buffer of each life.
    of: Vec<usize>,
    /// How many were looked at.
    tries: usize,
}

impl Buffers {
    fn new(states: &[usize]) -> Self {
        Self {
            bytes: states.to_vec(),
            states: states.len(),
            of: Vec::new(),
            tries: 0,
        }
    }

    /// The largest first, each into the smallest buffer that is free in its time: what is small
    /// then lies where something large was, and no buffer grows. After `most` tries those that are
    /// left, all of them smaller, share buffers of their own.
    fn fill(&mut self, lives: &[Life], most: usize) {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&life| (Reverse(lives[life].bytes), life));
        self.of = vec![END; lives.len()];
        // For each buffer after the states', the times at which it is taken, in order, and the last
        // of them that was added: mostly that one meets what is tried.
        let mut taken: Vec<BTreeMap<usize, usize>> = Vec::new();
        let mut added: Vec<(usize, usize)> = Vec::new();
        let mut order = order.into_iter();
        for life in order.by_ref() {
            let Life { bytes, first, last } = lives[life];
            let is_free = |buffer: usize| {
                let (begin, end) = added[buffer];
                let mut times = taken[buffer].range(..=last);
                (end < first || last < begin)
                    && times.next_back().is_none_or(|(_, &end)| end < first)
            };
            // They were made in the order of their sizes.
            let found = (0..taken.len()).rev().find(|&buffer| is_free(buffer));
            self.tries += taken.len() - found.unwrap_or(0);
            let found = found.unwrap_or_else(|| {
                self.bytes.push(bytes);
                taken.push(BTreeMap::new());
                added.push((first, last));
                taken.len() - 1
            });
            taken[found].insert(first, last);
            added[found] = (first, last);
            self.of[life] = self.states + found;
            if self.tries >= most {
                break;
            }
        }
        self.fill_by_time(lives, order.collect());
    }

    /// In the order in which they begin, each into the smallest buffer that is free then and large
    /// enough, or else into the largest, which grows.
    fn fill_by_time(&mut self, lives: &[Life], mut left: Vec<usize>) {
        left.sort_by_key(|&life| (lives[life].first, life));
        let mut taken: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        let mut free: BTreeSet<(usize, usize)> = BTreeSet::new();
        for life in left {
            let Life { bytes, first, last } = lives[life];
            while let Some(&Reverse((end, buffer))) = taken.peek()
                && end < first
            {
                taken.pop();
                free.insert((self.bytes[buffer], buffer));
            }
            let fits = free.range((bytes, 0)..).next().or(free.last()).copied();
            let buffer = match fits {
                Some(found) => {
                    free.remove(&found);
                    found.1
                }
                None => {
                    self.bytes.push(0);
                    self.bytes.len() - 1
                }
            };
            self.bytes[buffer] = self.bytes[buffer].max(bytes);
            taken.push(Reverse((last, buffer)));
            self.of[life] = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(states: &[usize], lives: &[(usize, usize, usize)], most: usize) -> Buffers {
        let mut found = Buffers::new(states);
        found.fill(&read(lives), most);
        found
    }

    fn read(lives: &[(usize, usize, usize)]) -> Vec<Life> {
        let read = |&(bytes, first, last)| Life { bytes, first, last };
        lives.iter().map(read).collect()
    }

    /// Any numbers below a bound: what they are does not matter.
    fn draws() -> impl FnMut(u64) -> usize {
        let mut seed = 7u64;
        move |below| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((seed >> 33) % below) as usize
        }
    }

    #[test]
    fn values_share_a_buffer_only_when_their_times_do_not_meet() {
        let mut draw = draws();
        let lives: Vec<(usize, usize, usize)> = (0..300)
            .map(|_| {
                let first = draw(100);
                let last = if draw(20) == 0 { END } else { first + draw(9) };
                (1 + draw(1000), first, last)
            })
            .collect();
        // All by size, some, and all but the first by time.
        for most in [MOST_TRIES, 500, 0] {
            let Buffers { of, bytes, .. } = place(&[8, 8], &lives, most);
            for (a, &(needed, first, last)) in lives.iter().enumerate() {
                assert!(of[a] >= 2, "buffers of states are not for others");
                assert!(bytes[of[a]] >= needed);
                for (b, &(_, begin, end)) in lives.iter().enumerate().skip(a + 1) {
                    let meet = first <= end && begin <= last;
                    assert!(!meet || of[a] != of[b], "{a} and {b} meet");
                }
            }
            assert!(bytes.len() < 2 + lives.len() / 2, "{most}: {}", bytes.len());
        }
    }

    #[test]
    fn many_values_at_once_are_placed_without_trying_every_buffer_for_each() {
        let count = 50_000;
        let lives: Vec<_> = (0..count).map(|i| (8, i, i + count)).collect();
        // Again, where the first are free, and others in between.
        let again = (0..count).map(|i| (8, i + 2 * count, i + 3 * count));
        let lives: Vec<_> = lives.into_iter().chain(again).collect();
        let found = place(&[], &lives, MOST_TRIES);
        assert!(found.tries < MOST_TRIES + count, "{}", found.tries);
        // Those placed by size, of which so many could be tried, and those placed by time.
        let by_size = (2.0 * MOST_TRIES as f64).sqrt() as usize + 1;
        let buffers = found.bytes.len();
        assert!(buffers <= by_size + count + 1, "{buffers}");
    }

    #[test]
    fn small_values_lie_where_large_ones_were() {
        let lives = [(1, 0, 1), (9, 2, 3), (5, 4, 6), (1, 6, 7)];
        let found = place(&[], &lives, MOST_TRIES);
        assert_eq!(found.bytes, [9, 1]);
        assert_eq!(found.of, [0, 0, 0, 1]);
        // All but the largest by time: a buffer grows.
        let found = place(&[], &lives, 0);
        assert_eq!(found.bytes, [9, 5, 1]);
    }
}
