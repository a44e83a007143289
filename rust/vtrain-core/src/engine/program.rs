//! A step graph made ready: every node's kernel, and what a step reads and leaves behind.

use std::collections::{BTreeSet, HashMap};

use super::EngineError;
use crate::graph::StepGraph;
use crate::number::Dtype;
use crate::ops::dropout::Mask;
use crate::ops::linear::Factors;
use crate::ops::{Bands, Form, Kernel, Part, Samples, Windows};

/// The node that counts steps is the state of this name.
const STEP: &str = "step";

/// Reorderings that one rescale is done before: models have two or three in a row.
const MOST_MOVES: usize = 32;

/// Stands for the next step among the readers of a value.
pub(super) const NEXT_STEP: usize = usize::MAX;

/// Forms of a dataset: so many samples, each an x and a y.
#[derive(Clone, Debug)]
pub struct SampleForms {
    /// Number of samples.
    pub count: usize,
    /// Form of one x.
    pub x: Form,
    /// Form of one y.
    pub y: Form,
    /// How windows lie in the tokens, if samples are windows.
    pub windows: Option<Windows>,
}

impl SampleForms {
    /// Bytes of all samples as they are stored. None: more than there can be, or forms of windows
    /// that are not those of `count` windows.
    pub(super) fn byte_len(&self) -> Option<usize> {
        let Some(windows) = &self.windows else {
            return self.row().checked_mul(self.count);
        };
        let context = self.x.size();
        let forms = [&self.x, &self.y];
        let fits = matches!(windows.width, 2 | 4 | 8)
            && windows.count(context) == self.count
            && forms
                .iter()
                .all(|form| form.dtype == Dtype::I32 && form.shape == [context]);
        windows.tokens.checked_mul(windows.width).filter(|_| fits)
    }

    pub(super) fn bind<'a>(&self, table: &'a [u8]) -> Samples<'a> {
        Samples {
            table,
            row: self.row(),
            split: self.x.byte_len(),
            windows: self.windows,
        }
    }

    fn row(&self) -> usize {
        self.x.byte_len() + self.y.byte_len()
    }
}

/// A recurrent tensor.
#[derive(Clone, Debug)]
pub struct State {
    /// Its name.
    pub name: String,
    /// Its form.
    pub form: Form,
}

/// The values that a step's record is made of, by node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordNodes {
    pub step: usize,
    pub batch_digest: usize,
    pub loss: usize,
    pub root: usize,
    pub commit_every: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub names: Vec<String>,
    pub kernels: Vec<Kernel>,
    pub forms: Vec<Form>,
    /// For each node, the nodes it reads.
    pub inputs: Vec<Vec<usize>>,
    /// For each node, the nodes that read it.
    pub users: Vec<Vec<usize>>,
    /// For each root node, the nodes (no views) that read its elements, and [`NEXT_STEP`].
    pub readers: Vec<Vec<usize>>,
    /// For each node, the node whose elements its own are: another one for a view.
    pub roots: Vec<usize>,
    pub states: Vec<State>,
    /// The place of each state among them, by its name.
    pub state_of: HashMap<String, usize>,
    /// For each state, the node that holds it before and the root of its value after the step.
    pub state_nodes: Vec<usize>,
    pub next_roots: Vec<usize>,
    pub step_state: usize,
    pub record: RecordNodes,
    /// Hashes that only a commitment step needs.
    pub commit_only: Vec<bool>,
    /// What a matmul multiplies; also a col2im, if it is one by [`Self::convolve`].
    pub factors: Vec<Option<Factors>>,
    /// For each node, the node under which its clamped elements are counted.
    pub counted: Vec<usize>,
}

impl Program {
    pub fn new(graph: &StepGraph, samples: &SampleForms) -> Result<Self, EngineError> {
        let count = graph.nodes.len();
        let mut program = Self {
            names: graph.nodes.iter().map(|node| node.name.clone()).collect(),
            kernels: Vec::with_capacity(count),
            forms: Vec::with_capacity(count),
            inputs: Vec::with_capacity(count),
            users: vec![Vec::new(); count],
            readers: vec![Vec::new(); count],
            roots: Vec::with_capacity(count),
            commit_only: vec![false; count],
            factors: Vec::with_capacity(count),
            counted: (0..count).collect(),
            ..Self::default()
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            let error = |reason: String| EngineError::node(&node.name, &node.op, reason);
            if node
                .inputs
                .iter()
                .any(|input| input.node >= index || input.output != 0)
            {
                return Err(error("reads what no earlier node puts out".into()));
            }
            let inputs: Vec<usize> = node.inputs.iter().map(|input| input.node).collect();
            let forms: Vec<Form> = inputs.iter().map(|&i| program.forms[i].clone()).collect();
            let (kernel, form) = Kernel::new(node, &forms).map_err(|e| error(e.to_string()))?;
            if let Kernel::GatherSamples { part } = kernel {
                let sample = if part == Part::X {
                    &samples.x
                } else {
                    &samples.y
                };
                if form.dtype != sample.dtype || form.shape[1..] != sample.shape {
                    return Err(error("the dataset has samples of another form".into()));
                }
            }
            for &input in &inputs {
                if program.users[input].last() != Some(&index) {
                    program.users[input].push(index);
                }
            }
            let is_alias = matches!(kernel, Kernel::NextState { .. } | Kernel::Reshape);
            if !is_alias {
                for &input in &inputs {
                    program.readers[program.roots[input]].push(index);
                }
            }
            program.roots.push(if is_alias {
                program.roots[inputs[0]]
            } else {
                index
            });
            program.factors.push(match kernel {
                Kernel::Matmul(product) => Some(Factors::Matrices(product)),
                _ => None,
            });
            program.kernels.push(kernel);
            program.forms.push(form);
            program.inputs.push(inputs);
        }
        program.find_states()?;
        program.find_record()?;
        program.find_commit_only()?;
        Ok(program)
    }

    /// The same steps with every rescale done before the reordering whose result it alone reads:
    /// what is moved then has fewer bytes, and the rescale comes right after what it rescales.
    ///
    /// A reordering, or zeros beside, changes neither what a rescale makes of an element nor how
    /// often it saturates: 0 stays 0.
    pub fn rescaled_early(&self) -> Self {
        let mut program = self.clone();
        for node in 0..program.kernels.len() {
            let mut rescale = node;
            for _ in 0..MOST_MOVES {
                match program.move_before(rescale) {
                    Some(moved) => rescale = moved,
                    None => break,
                }
            }
        }
        program
    }

    /// Swaps a rescale with the reordering before it, whose node it becomes.
    fn move_before(&mut self, rescale: usize) -> Option<usize> {
        if !matches!(self.kernels[rescale], Kernel::Rescale { .. }) {
            return None;
        }
        let node = self.roots[*self.inputs[rescale].first()?];
        let moves = matches!(
            self.kernels[node],
            Kernel::Transpose(_) | Kernel::Pad { .. }
        );
        let narrows = self.forms[rescale].dtype.size() <= self.forms[node].dtype.size();
        if !moves || !narrows || self.readers[node] != [rescale] {
            return None;
        }
        let from = &self.inputs[node];
        let form = self.forms[*from.first()?].with_dtype(self.forms[rescale].dtype);
        self.kernels.swap(node, rescale);
        self.forms[node] = form;
        // Views in between are views of nothing, and nobody reads them.
        let read = *self.inputs[rescale].first()?;
        self.users[read].retain(|&user| user != rescale);
        self.users[node] = vec![rescale];
        self.inputs[rescale] = vec![node];
        self.counted.swap(node, rescale);
        Some(node)
    }

    /// Has every mask of dropout that is read in parts alone drawn in these parts, as batches in
    /// parts read it: an element is drawn by its own number, and the mask is nowhere as a whole.
    pub fn draw_masks_in_parts(&mut self) {
        for node in 0..self.kernels.len() {
            let Kernel::DropoutMask(mask) = self.kernels[node] else {
                continue;
            };
            let parts = std::mem::take(&mut self.readers[node]);
            let first = |&part: &usize| match self.kernels.get(part) {
                Some(Kernel::Slice { axis, start }) if axis.unit() == self.forms[part].size() => {
                    Some((start * axis.inner) as u64)
                }
                _ => None,
            };
            let firsts: Option<Vec<u64>> = parts.iter().map(first).collect();
            let (Some(firsts), &[counter]) = (firsts, self.inputs[node].as_slice()) else {
                self.readers[node] = parts;
                continue;
            };
            let sources: BTreeSet<usize> = parts.iter().map(|&part| self.inputs[part][0]).collect();
            for source in sources {
                self.users[source].retain(|user| parts.binary_search(user).is_err());
            }
            for (&part, first) in parts.iter().zip(firsts) {
                self.kernels[part] = Kernel::DropoutMask(Mask { first, ..mask });
                self.inputs[part] = vec![counter];
            }
            self.users[counter].extend(&parts);
            self.readers[self.roots[counter]].extend(parts);
        }
    }

    /// Has every product that reads patches read the images instead, where that is better, and the
    /// gradients of images made as products of patches of gradients: neither patches nor theirs
    /// are stored then.
    pub fn convolve(&mut self) {
        for node in 0..self.kernels.len() {
            if let Some(Factors::Matrices(product)) = self.factors[node] {
                for input in 0..2 {
                    let patches = self.roots[self.inputs[node][input]];
                    if let Kernel::Im2col(window) = self.kernels[patches]
                        && let Some(factors) = Factors::of_images(product, input, window)
                    {
                        let mut inputs = self.inputs[node].clone();
                        inputs[input] = self.inputs[patches][0];
                        self.make_product(node, factors, inputs);
                        break;
                    }
                }
            }
            if let Kernel::Col2im(window) = self.kernels[node] {
                let source = self.roots[self.inputs[node][0]];
                if let Some(Factors::Matrices(product)) = self.factors[source]
                    && self.readers[source] == [node]
                    && let Some(factors) = Factors::of_gradients(product, &window)
                {
                    self.make_product(node, factors, self.inputs[source].clone());
                }
            }
        }
    }

    /// Has a node multiply these factors, which are its inputs from now on.
    fn make_product(&mut self, node: usize, factors: Factors, inputs: Vec<usize>) {
        self.factors[node] = Some(factors);
        let mut left = std::mem::replace(&mut self.inputs[node], inputs);
        for input in self.inputs[node].clone() {
            let root = self.roots[input];
            for list in [&mut self.users[input], &mut self.readers[root]] {
                list.retain(|&user| user != node);
                list.push(node);
            }
        }
        left.retain(|input| !self.inputs[node].contains(input));
        // What nobody reads any more reads nothing itself.
        let mut readers = vec![(node, left)];
        while let Some((reader, left)) = readers.pop() {
            for input in left {
                self.users[input].retain(|&user| user != reader);
                self.readers[self.roots[input]].retain(|&user| user != reader);
                if self.users[input].is_empty() && !self.kernels[input].saturates() {
                    readers.push((input, std::mem::take(&mut self.inputs[input])));
                }
            }
        }
    }

    /// Elements of a node's inputs.
    pub fn sizes_of(&self, node: usize) -> Vec<usize> {
        let inputs = self.inputs[node].iter();
        inputs.map(|&input| self.forms[input].size()).collect()
    }

    /// How a node falls into rows, if it does.
    pub fn bands_of(&self, node: usize) -> Option<Bands> {
        self.kernels[node].bands(&self.sizes_of(node), self.forms[node].size())
    }

    pub fn error(&self, node: usize, reason: &str) -> EngineError {
        EngineError::Node {
            place: format!("node {}", self.names[node]),
            reason: reason.to_owned(),
        }
    }

    fn find_states(&mut self) -> Result<(), EngineError> {
        let mut index_of = HashMap::new();
        for (node, kernel) in self.kernels.iter().enumerate() {
            if let Kernel::State { name } = kernel {
                if index_of.insert(name.clone(), self.states.len()).is_some() {
                    return Err(self.error(node, "another node reads this state too"));
                }
                self.states.push(State {
                    name: name.clone(),
                    form: self.forms[node].clone(),
                });
                self.state_nodes.push(node);
            }
        }
        let mut next = vec![None; self.states.len()];
        for (node, kernel) in self.kernels.iter().enumerate() {
            if let Kernel::NextState { name } = kernel {
                let Some(&state) = index_of.get(name) else {
                    return Err(self.error(node, "no node reads this state"));
                };
                if self.forms[node] != self.states[state].form {
                    return Err(self.error(node, "the state changes its type in a step"));
                }
                if next[state].replace(self.roots[node]).is_some() {
                    return Err(self.error(node, "another node writes this state too"));
                }
            }
        }
        for (next, &node) in next.into_iter().zip(&self.state_nodes) {
            let root = next.ok_or_else(|| self.error(node, "no node writes this state"))?;
            self.next_roots.push(root);
            self.readers[root].push(NEXT_STEP);
        }
        let scalar = Form::new(crate::number::Dtype::I64, vec![])?;
        match index_of.get(STEP) {
            Some(&state) if self.states[state].form == scalar => self.step_state = state,
            _ => return Err(EngineError::graph("has no step counter")),
        }
        self.state_of = index_of;
        Ok(())
    }

    fn find_record(&mut self) -> Result<(), EngineError> {
        let mut found = None;
        for (node, kernel) in self.kernels.iter().enumerate() {
            if let Kernel::Record { commit_every } = *kernel
                && found.replace((node, commit_every)).is_some()
            {
                return Err(self.error(node, "a step has one record"));
            }
        }
        let (node, commit_every) = found.ok_or_else(|| EngineError::graph("has no record"))?;
        let inputs = &self.inputs[node];
        let roots = self
            .kernels
            .iter()
            .filter(|kernel| matches!(kernel, Kernel::StateRoot));
        if roots.count() != 1 || !matches!(self.kernels[inputs[3]], Kernel::StateRoot) {
            return Err(self.error(node, "needs the one state root of the graph"));
        }
        self.record = RecordNodes {
            step: self.roots[inputs[0]],
            batch_digest: self.roots[inputs[1]],
            loss: self.roots[inputs[2]],
            root: inputs[3],
            commit_every,
        };
        self.commit_only[node] = true;
        self.commit_only[inputs[3]] = true;
        Ok(())
    }

    /// Hashes whose every user is such a hash: the digests of the new state, and its leaves.
    fn find_commit_only(&mut self) -> Result<(), EngineError> {
        for node in (0..self.kernels.len()).rev() {
            let only = self.users[node].iter().all(|&user| self.commit_only[user]);
            if self.kernels[node].is_hash() && only {
                self.commit_only[node] = true;
            }
            if self.commit_only[node] && !only {
                return Err(self.error(node, "is read by a node that every step needs"));
            }
        }
        Ok(())
    }
}
