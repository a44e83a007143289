//! The cpu engine: runs a step graph, many threads, bit for bit as the law says.

mod check;
mod groups;
mod narrow;
mod plan;
mod program;
mod run;
mod update;

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use crate::domains::Hash;
use crate::gemm::{Gemm, GemmError, Path, RescaleI16};
use crate::graph::{GraphDecodeError, StepGraph};
use crate::ops::linear::{Factors, Product};
use crate::ops::optimizer::Rate;
use crate::ops::{
    Buffer, Form, OpError, OutOfMemory, RunError, Samples, Slice, copy, for_rows, layout, linear,
};
use crate::tensor_digest::digest_parallel;
use crate::threads;

pub use check::{Checked, Signed};
use plan::{Job, Plan, Work};
use program::Program;
pub use program::{SampleForms, State};
use run::{Run, Scratch};
use update::update_in_place;

/// Why an engine refused.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The bytes are no step graph.
    #[error(transparent)]
    Decode(#[from] GraphDecodeError),
    /// A node does not fit its inputs or its place, or the graph is no training step.
    #[error("{place}: {reason}")]
    Node {
        /// "node NAME (OPERATOR)" or "graph".
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that the state does not have, or of another form.
    #[error("state {name}: {reason}")]
    State {
        /// Name of the tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// No whole state has been loaded, or a step failed half-way.
    #[error("no state is loaded")]
    NoState,
    /// The samples are not those announced.
    #[error("the table of samples has {found} bytes, not {needed}")]
    Samples {
        /// Bytes of the table.
        found: usize,
        /// Bytes that the announced samples have.
        needed: usize,
    },
    /// The machine lacks what was asked for.
    #[error(transparent)]
    Gemm(#[from] GemmError),
    /// Too large for the memory that there is.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The threads could not be started.
    #[error("cannot start the threads: {0}")]
    Threads(String),
}

impl EngineError {
    fn node(name: &str, op: &str, reason: String) -> Self {
        Self::Node {
            place: format!("node {name} ({op})"),
            reason,
        }
    }

    fn graph(reason: &str) -> Self {
        Self::Node {
            place: "graph".to_owned(),
            reason: reason.to_owned(),
        }
    }
}

impl From<OpError> for EngineError {
    fn from(error: OpError) -> Self {
        Self::graph(&error.to_string())
    }
}

/// What is recorded of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Steps done.
    pub step: i64,
    /// Digest of the raw batch.
    pub batch_digest: Hash,
    /// The integer loss of the law.
    pub loss: i64,
    /// Root of the state after the step, at commitment steps.
    pub state_root: Option<Hash>,
}

/// A step graph bound to a kind of dataset, with the state of a run.
#[derive(Debug)]
pub struct Engine {
    program: Program,
    samples: SampleForms,
    /// The least and the greatest element that each node's output may have.
    ranges: Vec<(i64, i64)>,
    /// The plan of a step without a trace, and the program that it is of: the same steps in another
    /// order.
    fused: Plan,
    reordered: Program,
    threads: usize,
    machine: Machine,
    /// Which state tensors have been loaded.
    loaded: Vec<bool>,
}

/// The mutable half of an engine.
#[derive(Debug)]
struct Machine {
    gemm: Gemm,
    /// Those of the fused plan; after a check of a step those of the state alone.
    buffers: Vec<Buffer>,
    /// Patches on their way to pixels.
    scratch: Buffer,
    slots: Scratch,
    /// Elements clamped so far, by node.
    saturated: Vec<u64>,
    /// Time spent so far, by node, if it is being measured.
    times: Option<Vec<Duration>>,
}

impl Engine {
    /// Compiles a graph. `threads` = 0 is one for each core. Nothing of a hostile graph runs here.
    pub fn new(
        graph: &StepGraph,
        samples: SampleForms,
        threads: usize,
        path: Path,
    ) -> Result<Self, EngineError> {
        if samples.byte_len().is_none() {
            return Err(EngineError::Samples {
                found: 0,
                needed: usize::MAX,
            });
        }
        let program = Program::new(graph, &samples)?;
        let mut reordered = program.rescaled_early();
        reordered.draw_masks_in_parts();
        reordered.convolve();
        let fused = Plan::fused(&reordered);
        let buffers = allocate(&fused.buffers)?;
        let machine = Machine {
            gemm: Gemm::new(path)?,
            buffers,
            scratch: Buffer::default(),
            slots: Scratch::default(),
            saturated: vec![0; program.kernels.len()],
            times: None,
        };
        let loaded = vec![false; program.states.len()];
        let ranges = graph.nodes.iter().map(|node| {
            let output = node.outputs.first();
            output.map_or((0, 0), |output| (output.lo, output.hi))
        });
        Ok(Self {
            program,
            samples,
            ranges: ranges.collect(),
            fused,
            reordered,
            threads,
            machine,
            loaded,
        })
    }

    /// The recurrent tensors, in node order.
    pub fn states(&self) -> &[State] {
        &self.program.states
    }

    /// Names of the nodes.
    pub fn names(&self) -> &[String] {
        &self.program.names
    }

    /// Form of a node's output.
    pub fn form(&self, node: usize) -> Option<&Form> {
        self.program.forms.get(node)
    }

    /// Replaces one tensor of the state.
    pub fn load_state(&mut self, name: &str, value: Slice<'_>) -> Result<(), EngineError> {
        let error = |reason: &str| EngineError::State {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let found = self.program.state_of.get(name).copied();
        let index = found.ok_or_else(|| error("the graph has no such tensor"))?;
        let form = &self.program.states[index].form;
        if value.dtype() != form.dtype || value.len() != form.size() {
            return Err(error("has another dtype or size"));
        }
        copy(
            value,
            self.machine.buffers[index].slice_mut(form.dtype, form.size()),
        )
        .map_err(|_| error("has another dtype or size"))?;
        self.loaded[index] = true;
        Ok(())
    }

    /// A tensor of the state, by its index in [`Self::states`].
    pub fn read_state(&self, index: usize) -> Result<Slice<'_>, EngineError> {
        self.check_loaded()?;
        let state = self.program.states.get(index).ok_or(EngineError::NoState)?;
        Ok(self.machine.buffers[index].slice(state.form.dtype, state.form.size()))
    }

    /// Elements clamped so far by each node.
    pub fn saturated(&self) -> &[u64] {
        &self.machine.saturated
    }

    /// Starts to measure, from zero, the time spent at each node.
    pub fn start_profile(&mut self) {
        self.machine.times = Some(vec![Duration::ZERO; self.program.kernels.len()]);
    }

    /// Time spent since [`Self::start_profile`] at each node; that of merged nodes is the last's.
    pub fn profile(&self) -> &[Duration] {
        self.machine.times.as_deref().unwrap_or(&[])
    }

    /// Bytes of all buffers that a step uses.
    pub fn memory(&self) -> usize {
        let threads = match self.threads {
            0 => rayon::current_num_threads(),
            threads => threads,
        };
        self.fused.buffers.iter().sum::<usize>() + self.fused.scratch(threads)
    }

    /// Does one step on the samples of `table`, row after row.
    ///
    /// After an error the state is unknown and must be loaded anew.
    pub fn step(&mut self, table: &[u8]) -> Result<Record, EngineError> {
        self.check_ready(table)?;
        let commits = self.commits();
        let there = self.machine.buffers.len();
        let mut missing = allocate(&self.fused.buffers[there..])?;
        self.machine.buffers.append(&mut missing);
        self.loaded.fill(false);
        let Self {
            reordered,
            samples,
            fused,
            machine,
            ..
        } = self;
        let samples = samples.bind(table);
        let record = on(self.threads, || {
            machine.run(reordered, fused, &samples, commits, END, |_, _| ())?;
            machine.advance(reordered, fused, commits)
        })?;
        self.loaded.fill(true);
        Ok(record)
    }

    /// Does one step node by node, and returns the digest of every node's output.
    pub fn trace(&mut self, table: &[u8]) -> Result<(Record, Vec<Hash>), EngineError> {
        self.check_ready(table)?;
        let commits = self.commits();
        let plan = Plan::plain(&self.program);
        let mut digests = vec![[0u8; 32]; self.program.kernels.len()];
        self.loaded.fill(false);
        let record = self.run_plain(&plan, table, |machine, program, samples| {
            machine.run(program, &plan, samples, true, END, |node, value| {
                let root = program.roots[node];
                digests[node] = if root == node {
                    digest_parallel(value.bytes())
                } else {
                    digests[root]
                };
            })?;
            machine.advance(program, &plan, commits)
        })?;
        self.loaded.fill(true);
        Ok((record, digests))
    }

    /// Outputs of `nodes` in the next step, in their order; `take` gets the elements of each. The
    /// state stays as it is.
    pub fn evaluate<R: Send>(
        &mut self,
        table: &[u8],
        nodes: &[usize],
        mut take: impl FnMut(&Form, Slice<'_>) -> R + Send,
    ) -> Result<Vec<R>, EngineError> {
        self.check_ready(table)?;
        let count = self.program.kernels.len();
        if let Some(node) = nodes.iter().find(|&&node| node >= count) {
            return Err(EngineError::graph(&format!("has no node {node}")));
        }
        let Some(&last) = nodes.iter().max() else {
            return Ok(Vec::new());
        };
        let mut places: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, &node) in nodes.iter().enumerate() {
            places.entry(node).or_default().push(place);
        }
        let plan = Plan::plain(&self.program);
        let counts = self.machine.saturated.clone();
        let result = self.run_plain(&plan, table, |machine, program, samples| {
            let mut taken: Vec<Option<R>> = nodes.iter().map(|_| None).collect();
            machine.run(program, &plan, samples, true, last, |at, value| {
                for &place in places.get(&at).into_iter().flatten() {
                    taken[place] = Some(take(&program.forms[at], value));
                }
            })?;
            let found = nodes
                .iter()
                .zip(taken)
                .map(|(&node, value)| value.ok_or_else(|| program.error(node, "was not computed")));
            found.collect()
        });
        self.machine.saturated = counts;
        result
    }

    /// Runs `work` with the buffers of a plain plan in the place of the fused one's.
    fn run_plain<R: Send>(
        &mut self,
        plan: &Plan,
        table: &[u8],
        work: impl FnOnce(&mut Machine, &Program, &Samples<'_>) -> Result<R, EngineError> + Send,
    ) -> Result<R, EngineError> {
        let Self {
            program,
            samples,
            machine,
            threads,
            ..
        } = self;
        let samples = samples.bind(table);
        let states = program.states.len();
        let mut buffers = allocate(&plan.buffers[states..])?;
        let own = machine.buffers.split_off(states);
        machine.buffers.append(&mut buffers);
        let result = on(*threads, || work(machine, program, &samples));
        machine.buffers.truncate(states);
        machine.buffers.extend(own);
        result
    }

    fn check_loaded(&self) -> Result<(), EngineError> {
        if self.loaded.iter().all(|&loaded| loaded) {
            Ok(())
        } else {
            Err(EngineError::NoState)
        }
    }

    fn check_ready(&self, table: &[u8]) -> Result<(), EngineError> {
        self.check_loaded()?;
        let needed = self.samples.byte_len().unwrap_or(usize::MAX);
        if table.len() != needed {
            return Err(EngineError::Samples {
                found: table.len(),
                needed,
            });
        }
        Ok(())
    }

    /// Does the next step commit to the state?
    fn commits(&self) -> bool {
        let done = self.machine.buffers[self.program.step_state].read::<i64>(1);
        let done = done.first().copied().unwrap_or(0);
        done.wrapping_add(1)
            .rem_euclid(self.program.record.commit_every)
            == 0
    }
}

/// Elements of patches that are computed before they are added to their pixels: 4 MiB, which stay
/// in the caches.
const SCATTERED: usize = 1 << 19;
/// After the last node.
const END: usize = usize::MAX;

fn allocate(sizes: &[usize]) -> Result<Vec<Buffer>, EngineError> {
    Ok(sizes
        .iter()
        .map(|&bytes| Buffer::new(bytes))
        .collect::<Result<_, _>>()?)
}

fn on<R: Send>(
    threads: usize,
    work: impl FnOnce() -> Result<R, EngineError> + Send,
) -> Result<R, EngineError> {
    // In a scope, so that all of a step runs inside the pool, also inside rayon's own.
    threads::run_on(threads, || rayon::scope(|_| work()))
        .map_err(|error| EngineError::Threads(error.to_string()))?
}

impl Machine {
    /// Does the jobs up to node `until`; `visit` sees the elements of each node that is done.
    fn run(
        &mut self,
        program: &Program,
        plan: &Plan,
        samples: &Samples<'_>,
        commits: bool,
        until: usize,
        mut visit: impl FnMut(usize, Slice<'_>),
    ) -> Result<(), EngineError> {
        for job in &plan.jobs {
            if job.node > until || (job.commit_only && !commits) {
                continue;
            }
            let start = self.times.is_some().then(Instant::now);
            self.run_job(program, plan, job, samples)
                .map_err(|error| program.error(job.node, &error.to_string()))?;
            if let (Some(start), Some(times)) = (start, self.times.as_mut()) {
                times[job.node] += start.elapsed();
            }
            visit(job.node, self.value(program, plan, job.node));
        }
        Ok(())
    }

    /// Elements of a node's output; empty if they are being written.
    fn value(&self, program: &Program, plan: &Plan, node: usize) -> Slice<'_> {
        value(&self.buffers, program, plan, node)
    }

    fn run_job(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        samples: &Samples<'_>,
    ) -> Result<(), RunError> {
        match &job.work {
            Work::View => return Ok(()),
            Work::Run(run) => return self.run_by_blocks(program, plan, job, run),
            _ => {}
        }
        // The output's buffer is taken out while it is written: who reads it sees no elements.
        let place = plan.places[job.node];
        let mut out = mem::take(self.buffers.get_mut(place).ok_or(RunError::Inputs)?);
        let result = match job.work {
            Work::Update { velocity, .. } => {
                let place = plan.places[velocity];
                let taken = self
                    .buffers
                    .get_mut(place)
                    .ok_or(RunError::Inputs)
                    .map(mem::take);
                taken.and_then(|mut taken| {
                    let result = self.run_update(program, plan, job, &mut taken, &mut out);
                    self.buffers[place] = taken;
                    result
                })
            }
            Work::Product(ref factors) => self.run_product(program, plan, job, factors, &mut out),
            Work::Dense { .. } => self.run_dense(program, plan, job, &mut out),
            Work::Scatter { .. } => self.run_scatter(program, plan, job, &mut out),
            _ => self.run_node(program, plan, job, samples, &mut out),
        };
        self.buffers[place] = out;
        result
    }

    fn run_node(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        samples: &Samples<'_>,
        out: &mut Buffer,
    ) -> Result<(), RunError> {
        let (kernel, form) = (&program.kernels[job.node], &program.forms[job.node]);
        let inputs: Vec<Slice<'_>> = program.inputs[job.node]
            .iter()
            .map(|&input| value(&self.buffers, program, plan, input))
            .collect();
        if kernel.is_in_place() && plan.places[job.inputs[0]] != plan.places[job.node] {
            copy(inputs[0], out.slice_mut(form.dtype, form.size()))?;
        }
        let out = out.slice_mut(form.dtype, form.size());
        let clamped = kernel.run(&inputs, out, samples, &mut self.gemm)?;
        self.saturated[program.counted[job.node]] += clamped;
        Ok(())
    }

    fn run_by_blocks(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        run: &Run,
    ) -> Result<(), RunError> {
        let base = |value: usize| self.buffers.get(plan.places[value]).map(Buffer::base);
        for value in job.inputs.iter().copied().chain(run.writes()) {
            let bytes = program.forms[value].byte_len();
            let buffer = self.buffers.get(plan.places[value]);
            if buffer.is_none_or(|buffer| buffer.capacity() < bytes) {
                return Err(RunError::Inputs);
            }
        }
        let base = |value: usize| base(value).unwrap_or(std::ptr::null_mut());
        // SAFETY: the buffers were found large enough, and nobody else has them now: `self` is
        // borrowed. The plan gives values that live at one time buffers of their own, unless
        // `Run::may_overwrite` allows one.
        let clamped = unsafe { run.go(program, base, &self.slots)? };
        for (node, count) in clamped {
            self.saturated[program.counted[node]] += count;
        }
        Ok(())
    }

    fn run_product(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        factors: &Factors,
        out: &mut Buffer,
    ) -> Result<(), RunError> {
        let input = |i: usize| value(&self.buffers, program, plan, job.inputs[i]);
        let (a, b) = (input(0).try_into()?, input(1).try_into()?);
        let out = out.write(program.forms[job.node].size());
        Ok(linear::matmul(&mut self.gemm, factors, a, b, out)?)
    }

    fn run_dense(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        out: &mut Buffer,
    ) -> Result<(), RunError> {
        let Work::Dense {
            ref factors,
            stack,
            bias,
            shift,
            rescale,
            relu,
        } = job.work
        else {
            return Err(RunError::Inputs);
        };
        let input = |i: usize| value(&self.buffers, program, plan, job.inputs[i]);
        let bias = match bias {
            Some(shift) => Some(linear::align_bias(input(2).try_into()?, shift)),
            None => None,
        };
        let (a, b) = (input(0).try_into()?, input(1).try_into()?);
        let out = out.write(program.forms[job.node].size());
        let (Product { m, n, .. }, bias) = (factors.product(), bias.as_deref());
        let one = |gemm: &mut Gemm, operands: (&[i16], &[i16]), out: &mut [i16]| {
            // Every shift of a rescale lies within [-62, 64].
            let epilogue = RescaleI16::new(out, m, n, shift as i32, bias, relu)?;
            factors.multiply(gemm, operands, &epilogue)?;
            Ok(epilogue.saturated())
        };
        let clamped = match factors {
            Factors::Matrices(product) => {
                linear::stacked(&mut self.gemm, *product, stack, (a, b), out, one)?
            }
            Factors::Patches { .. } => one(&mut self.gemm, (a, b), out)?,
        };
        self.saturated[program.counted[rescale]] += clamped;
        Ok(())
    }

    fn run_scatter(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        out: &mut Buffer,
    ) -> Result<(), RunError> {
        let Work::Scatter { product, window } = &job.work else {
            return Err(RunError::Inputs);
        };
        let a: &[i16] = value(&self.buffers, program, plan, job.inputs[0]).try_into()?;
        let b: &[i16] = value(&self.buffers, program, plan, job.inputs[1]).try_into()?;
        let out = out.write::<i64>(program.forms[job.node].size());
        let (windows, image) = (window.windows(), window.image());
        if out.is_empty() {
            return Ok(());
        }
        let images = out.len() / image;
        let per_image = windows * product.n;
        let at_once = (SCATTERED / per_image.max(1)).clamp(1, images);
        let bytes = at_once * per_image * size_of::<i64>();
        if self.scratch.capacity() < bytes {
            self.scratch = Buffer::new(bytes)?;
        }
        for (i, out) in out.chunks_mut(at_once * image).enumerate() {
            let m = out.len() / image * windows;
            let part = Factors::Matrices(Product { m, ..*product });
            let a = &a[i * at_once * windows * product.k..][..m * product.k];
            let patches = self.scratch.write::<i64>(m * product.n);
            linear::matmul(&mut self.gemm, &part, a, b, patches)?;
            for_rows(out, image, |first, out| {
                layout::col2im(window, &patches[first * per_image..], out);
                0
            });
        }
        Ok(())
    }

    fn run_update(
        &mut self,
        program: &Program,
        plan: &Plan,
        job: &Job,
        velocity: &mut Buffer,
        weight: &mut Buffer,
    ) -> Result<(), RunError> {
        let Work::Update {
            ref factors,
            rule,
            shift,
            velocity: moved,
            ..
        } = job.work
        else {
            return Err(RunError::Inputs);
        };
        let input = |i: usize| value(&self.buffers, program, plan, job.inputs[i]);
        let operands = (input(0).try_into()?, input(1).try_into()?);
        let rate: &[i64] = input(2).try_into()?;
        let rate = Rate {
            rate: rate.first().copied().ok_or(RunError::Inputs)?,
            shift,
        };
        let size = program.forms[job.node].size();
        let (velocity, weight) = (velocity.write(size), weight.write(size));
        let clamped = update_in_place(
            &mut self.gemm,
            factors,
            operands,
            velocity,
            weight,
            rule,
            rate,
        )?;
        self.saturated[program.counted[moved]] += clamped.velocity;
        self.saturated[program.counted[job.node]] += clamped.weight;
        Ok(())
    }

    /// Takes the record of the step that was run, and makes the new state the current one.
    fn advance(
        &mut self,
        program: &Program,
        plan: &Plan,
        commits: bool,
    ) -> Result<Record, EngineError> {
        let error = |_| EngineError::graph("records values of other types");
        let scalar = |node: usize| -> Result<i64, RunError> {
            let x: &[i64] = self.value(program, plan, node).try_into()?;
            x.first().copied().ok_or(RunError::Inputs)
        };
        let digest = |node: usize| -> Result<Hash, RunError> {
            let x: &[u8] = self.value(program, plan, node).try_into()?;
            x.try_into().map_err(|_| RunError::Inputs)
        };
        let nodes = program.record;
        let record = Record {
            step: scalar(nodes.step).map_err(error)?,
            batch_digest: digest(nodes.batch_digest).map_err(error)?,
            loss: scalar(nodes.loss).map_err(error)?,
            state_root: if commits {
                Some(digest(nodes.root).map_err(error)?)
            } else {
                None
            },
        };
        // A new value may lie where another state's old one is: such values are set aside first.
        let mut aside = Vec::new();
        let moves = program
            .next_roots
            .iter()
            .map(|&root| plan.places[root])
            .enumerate();
        for (state, place) in moves.clone().filter(|&(state, place)| state != place) {
            if place < program.states.len() {
                let bytes = program.states[state].form.byte_len();
                let mut buffer = Buffer::new(bytes)?;
                buffer
                    .write::<u8>(bytes)
                    .copy_from_slice(self.buffers[place].read(bytes));
                aside.push((state, buffer));
            }
        }
        for (state, place) in moves.filter(|&(state, place)| state != place) {
            if place >= program.states.len() {
                let bytes = program.states[state].form.byte_len();
                let (states, others) = self.buffers.split_at_mut(program.states.len());
                let from = others[place - states.len()].read::<u8>(bytes);
                states[state].write::<u8>(bytes).copy_from_slice(from);
            }
        }
        for (state, buffer) in aside {
            let bytes = program.states[state].form.byte_len();
            self.buffers[state]
                .write::<u8>(bytes)
                .copy_from_slice(buffer.read(bytes));
        }
        Ok(record)
    }
}

fn value<'a>(buffers: &'a [Buffer], program: &Program, plan: &Plan, node: usize) -> Slice<'a> {
    let form = &program.forms[node];
    let place = plan.places[program.roots[node]];
    buffers
        .get(place)
        .map_or(Slice::U8(&[]), |b| b.slice(form.dtype, form.size()))
}
