//! Checking a step's values against digests that somebody signed, as they are computed.
//!
//! Twin of `vtrain/audit/traces.py`, which has the argument: nodes are looked at in their order, a
//! product of matrices is read and checked by random vectors (`crate::algebraic`), all else is done
//! again in buffers that are used over and over, and hashed while it is in the caches.

use super::program::Program;
use super::{Engine, EngineError, Machine, Plan, value};
use crate::algebraic::{Claimed, find_wrong};
use crate::domains::Hash;
use crate::ops::linear::Product;
use crate::ops::{Kernel, RunError, Samples, Slice};
use crate::tensor_digest::digest_parallel;

/// What a step is held against.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// The digest of each node's output.
    pub digests: &'a [Hash],
    /// Vectors for the check of products, each as long as the widest of them.
    pub vectors: &'a [&'a [u64]],
}

/// A node at which a check of a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Every value is right, but for a chance below 2^-60 a vector; the state is that after it.
    Right,
    /// The output of this node is wrong, or was not given.
    Stopped(usize),
}

impl Engine {
    /// Bytes of all buffers that [`Self::check`] uses.
    pub fn check_memory(&self) -> usize {
        Plan::plain(&self.program).buffers.iter().sum()
    }

    /// Checks the next step, and goes on to the state after it.
    ///
    /// The state before is taken to be right. `read` fills in what is claimed to be the output of a
    /// product, once it has found that it has the digest signed; it says whether there is any.
    /// After an error, and where the check stopped, the state is unknown and must be loaded anew.
    pub fn check<E: Send>(
        &mut self,
        table: &[u8],
        signed: Signed<'_>,
        mut read: impl FnMut(usize, &mut [i64]) -> Result<bool, E> + Send,
    ) -> Result<Result<Checked, E>, EngineError> {
        self.check_ready(table)?;
        if signed.digests.len() != self.program.kernels.len() {
            return Err(EngineError::graph("there is not one digest for each node"));
        }
        let commits = self.commits();
        let plan = Plan::plain(&self.program);
        let ranges = std::mem::take(&mut self.ranges);
        let counts = self.machine.saturated.clone();
        // Whoever checks does no steps: their buffers make room for those of the check.
        self.machine.buffers.truncate(self.program.states.len());
        self.loaded.fill(false);
        let result = self.run_plain(&plan, table, |machine, program, samples| {
            let mut walk = Walk {
                machine,
                program,
                plan: &plan,
                ranges: &ranges,
                signed,
            };
            match walk.run(samples, &mut read)? {
                Ok(Checked::Right) => {
                    walk.machine.advance(program, &plan, commits)?;
                    Ok(Ok(Checked::Right))
                }
                stopped => Ok(stopped),
            }
        });
        self.machine.saturated = counts;
        self.ranges = ranges;
        if matches!(result, Ok(Ok(Checked::Right))) {
            self.loaded.fill(true);
        }
        result
    }
}

/// A step on its way.
struct Walk<'a> {
    machine: &'a mut Machine,
    program: &'a Program,
    plan: &'a Plan,
    ranges: &'a [(i64, i64)],
    signed: Signed<'a>,
}

impl Walk<'_> {
    fn run<E>(
        &mut self,
        samples: &Samples<'_>,
        read: &mut impl FnMut(usize, &mut [i64]) -> Result<bool, E>,
    ) -> Result<Result<Checked, E>, EngineError> {
        let (program, plan) = (self.program, self.plan);
        for job in &plan.jobs {
            let node = job.node;
            let fail = |error: RunError| program.error(node, &error.to_string());
            let right = match program.kernels[node] {
                Kernel::State { .. } => true, // loaded, and so held against what it is
                Kernel::NextState { .. } | Kernel::Reshape => {
                    let root = program.roots[node];
                    self.signed.digests[node] == self.signed.digests[root]
                }
                Kernel::Matmul(product) => match self.check_product(node, product, 1, read) {
                    Ok(Ok(right)) => right,
                    Ok(Err(error)) => return Ok(Err(error)),
                    Err(error) => return Err(fail(error)),
                },
                Kernel::BatchedMatmul { stack, product } => {
                    match self.check_product(node, product, stack, read) {
                        Ok(Ok(right)) => right,
                        Ok(Err(error)) => return Ok(Err(error)),
                        Err(error) => return Err(fail(error)),
                    }
                }
                Kernel::TensorDigest => {
                    // That of its input was found to be the one signed.
                    let digest = self.signed.digests[program.inputs[node][0]];
                    let out = &mut self.machine.buffers[plan.places[node]];
                    let bytes = out.write::<u8>(digest.len());
                    bytes.copy_from_slice(&digest);
                    digest_parallel(bytes) == self.signed.digests[node]
                }
                _ => {
                    self.machine
                        .run_job(program, plan, job, samples)
                        .map_err(fail)?;
                    let found = value(&self.machine.buffers, program, plan, node);
                    digest_parallel(found.bytes()) == self.signed.digests[node]
                }
            };
            if !right {
                return Ok(Ok(Checked::Stopped(node)));
            }
        }
        Ok(Ok(Checked::Right))
    }

    /// Whether the claimed output of a product, which stays in its buffer, is right.
    fn check_product<E>(
        &mut self,
        node: usize,
        product: Product,
        stack: usize,
        read: &mut impl FnMut(usize, &mut [i64]) -> Result<bool, E>,
    ) -> Result<Result<bool, E>, RunError> {
        let place = self.plan.places[node];
        let mut out = self
            .machine
            .buffers
            .get_mut(place)
            .map(std::mem::take)
            .ok_or(RunError::Inputs)?;
        let claimed = out.write::<i64>(self.program.forms[node].size());
        let result = match read(node, claimed) {
            Ok(true) => self.find_wrong(node, product, stack, claimed).map(Ok),
            Ok(false) => Ok(Ok(false)),
            Err(error) => Ok(Err(error)),
        };
        self.machine.buffers[place] = out;
        result
    }

    fn find_wrong(
        &self,
        node: usize,
        product: Product,
        stack: usize,
        claimed: &[i64],
    ) -> Result<bool, RunError> {
        let operand = |i: usize| -> Slice<'_> {
            let input = self.program.inputs[node][i];
            value(&self.machine.buffers, self.program, self.plan, input)
        };
        let claimed = Claimed {
            product,
            stack,
            a: operand(0).try_into()?,
            b: operand(1).try_into()?,
            c: claimed,
            range: self.ranges[node],
        };
        let found = find_wrong(&claimed, self.signed.vectors);
        Ok(found.map_err(|_| RunError::Inputs)?.is_none())
    }
}
