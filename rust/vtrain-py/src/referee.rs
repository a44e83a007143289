//! Frontiers of trees, leaf rules and the referee for Python.

use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vtrain_core::domains::Hash;
use vtrain_core::graph::Node;
use vtrain_core::ops::{OpError, Slice, Windows};
use vtrain_core::referee::whole::{self, Parts, Whole};
use vtrain_core::referee::{self, Leaf, Stop, Tokens};
use vtrain_core::threads::run_on;
use vtrain_core::{merkle, tensor_digest as digest};

use crate::commit::{Bytes, detached, domain_named, hashes, no_threads, to_python};
use crate::engine::{Tensor, decode_error, typed};

fn encoding(py: Python<'_>, message: &str, place: &str) -> PyErr {
    typed(py, "EncodingError", message, place)
}

/// The chaining values of all chunks of one tensor, and the tensor.
///
/// The buffer is held, not copied: whoever changes it gets chunks that belong to no digest.
#[pyclass(module = "vtrain._core", frozen)]
struct ChunkTree {
    tree: digest::ChunkTree,
    data: Bytes,
}

#[pymethods]
impl ChunkTree {
    #[new]
    #[pyo3(signature = (data, threads=0))]
    fn new(py: Python<'_>, data: Bytes, threads: usize) -> PyResult<Self> {
        let bytes = data.as_slice();
        let tree = match digest::pays(bytes.len()) {
            true => detached(py, threads, || digest::ChunkTree::new(bytes))?,
            false => py.detach(|| digest::ChunkTree::new(bytes)), // no hop into a pool
        };
        Ok(Self { tree, data })
    }

    #[getter]
    fn chunks(&self) -> u64 {
        self.tree.chunks()
    }

    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.tree.digest())
    }

    fn frontier<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: u64,
        depth: u32,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let values = self.tree.frontier(start, end, depth);
        let values = values.map_err(|error| encoding(py, &error.to_string(), "frontier"))?;
        if end - start == 1 {
            return Ok(vec![self.chunk(py, start)?]);
        }
        Ok(to_python(py, &values))
    }

    #[allow(clippy::type_complexity)]
    fn opening<'py>(
        &self,
        py: Python<'py>,
        index: u64,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
        let path = self.tree.path(index);
        let path = path.map_err(|error| encoding(py, &error.to_string(), "chunk"))?;
        Ok((self.chunk(py, index)?, to_python(py, &path)))
    }
}

impl ChunkTree {
    fn chunk<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyBytes>> {
        let chunk = digest::chunk_bytes(self.data.as_slice(), index);
        let chunk = chunk.map_err(|error| encoding(py, &error.to_string(), "chunk"))?;
        Ok(PyBytes::new(py, chunk))
    }
}

#[pyfunction]
fn fold_frontier<'py>(
    py: Python<'py>,
    domain: &str,
    start: u64,
    end: u64,
    depth: u32,
    items: Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let domain = domain_named(domain)?;
    let items =
        hashes(&items).ok_or_else(|| encoding(py, "an item is not 32 bytes", "frontier"))?;
    let value = merkle::fold_frontier(domain, start, end, depth, &items)
        .map_err(|error| encoding(py, &error.to_string(), "frontier"))?;
    Ok(PyBytes::new(py, &value))
}

#[pyfunction]
fn fold_chunk_frontier<'py>(
    py: Python<'py>,
    chunks: u64,
    start: u64,
    end: u64,
    depth: u32,
    items: Vec<Vec<u8>>,
    is_root: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    if end > chunks || is_root != ((start, end) == (0, chunks)) {
        let reason = format!("chunks {start} to {end} of {chunks} are not where they should be");
        return Err(encoding(py, &reason, "frontier"));
    }
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    let value = digest::fold_chunk_frontier(start, end, depth, &items, is_root)
        .map_err(|error| encoding(py, &error.to_string(), "frontier"))?;
    Ok(PyBytes::new(py, &value))
}

/// A node with the rule of its elements.
struct Rule {
    leaf: Leaf,
    place: String,
}

impl Rule {
    fn new(py: Python<'_>, node: &[u8], sources: &[Vec<u8>]) -> PyResult<Self> {
        let decode = |data: &[u8]| Node::decode(data).map_err(|error| decode_error(py, &error));
        let node = decode(node)?;
        let sources: Vec<Node> = sources
            .iter()
            .map(|source| decode(source))
            .collect::<PyResult<_>>()?;
        let place = format!("node {} ({})", node.name, node.op);
        let leaf = referee::input_forms(&node, &sources)
            .and_then(|forms| Leaf::new(&node, &forms))
            .map_err(|OpError(reason)| typed(py, "GraphError", &reason, &place))?;
        Ok(Self { leaf, place })
    }

    fn refuse(&self, py: Python<'_>, reason: &str) -> PyErr {
        typed(py, "GraphError", reason, &self.place)
    }
}

/// Whole tensors from Python, checked against the types of a rule.
struct Tensors<'py> {
    inputs: Vec<Tensor<'py>>,
    digests: Vec<Hash>,
    rows: Option<PyReadonlyArray2<'py, u8>>,
    tokens: Option<Tokens>,
}

/// Chunks of each input, rows, and chunks of tokens.
type Read = (Vec<Vec<u64>>, Vec<u64>, Vec<u64>);

/// Bytes of a token, tokens of the file and of a window, and stride and shift of windows.
type TokenForm = (usize, usize, usize, usize, usize);

fn tokens_of(form: TokenForm) -> PyResult<Tokens> {
    let (width, tokens, context, stride, shift) = form;
    if !matches!(width, 2 | 4 | 8) || context == 0 || stride == 0 {
        return Err(PyTypeError::new_err("there are no such windows of tokens"));
    }
    let windows = Windows {
        width,
        tokens,
        stride,
        shift,
    };
    Ok(Tokens { windows, context })
}

impl<'py> Tensors<'py> {
    fn new(
        py: Python<'py>,
        inputs: Vec<Tensor<'py>>,
        digests: &[Vec<u8>],
        rows: Option<Bound<'py, PyArray2<u8>>>,
        windows: Option<TokenForm>,
    ) -> PyResult<Self> {
        let digests =
            hashes(digests).ok_or_else(|| encoding(py, "a digest is not 32 bytes", "digests"))?;
        let rows = match rows {
            Some(rows) if !rows.is_c_contiguous() => {
                return Err(PyTypeError::new_err("the rows are not C-contiguous"));
            }
            rows => rows.map(|rows| rows.try_readonly()).transpose(),
        };
        Ok(Self {
            inputs,
            digests,
            rows: rows.map_err(|error| PyTypeError::new_err(error.to_string()))?,
            tokens: windows.map(tokens_of).transpose()?,
        })
    }

    /// Runs `work` on them without the GIL.
    fn read<R: Send>(
        &self,
        py: Python<'_>,
        rule: &Rule,
        element: u64,
        work: impl FnOnce(&mut Whole<'_>) -> Result<R, Stop> + Send,
    ) -> PyResult<R> {
        let slices: Vec<Slice<'_>> = self
            .inputs
            .iter()
            .map(Tensor::slice)
            .collect::<PyResult<_>>()?;
        let forms = rule.leaf.inputs();
        let fits = slices.len() == forms.len()
            && slices
                .iter()
                .zip(forms)
                .all(|(x, form)| x.dtype() == form.dtype && x.len() == form.size());
        if !fits {
            return Err(rule.refuse(py, "the arrays are not of its inputs' types"));
        }
        if element >= rule.leaf.output().size() as u64 {
            return Err(rule.refuse(py, &format!("has no element {element}")));
        }
        let (table, row) = match &self.rows {
            Some(rows) => (
                rows.as_slice()
                    .map_err(|error| PyTypeError::new_err(error.to_string()))?,
                rows.shape()[1],
            ),
            None => (&[][..], 0),
        };
        let mut reader = Whole {
            inputs: &slices,
            digests: &self.digests,
            table,
            row,
            tokens: self.tokens,
        };
        py.detach(|| work(&mut reader))
            .map_err(|stop| rule.refuse(py, &stop.to_string()))
    }
}

/// Terms, terms of a block, and integers of a state.
#[pyfunction]
fn leaf_fold(py: Python<'_>, node: &[u8], sources: Vec<Vec<u8>>) -> PyResult<(u64, u64, usize)> {
    let leaf = Rule::new(py, node, &sources)?.leaf;
    Ok((leaf.terms(), leaf.block_length(), leaf.width()))
}

/// Bytes of the element that a state makes, or none.
#[pyfunction]
fn leaf_finish<'py>(
    py: Python<'py>,
    node: &[u8],
    sources: Vec<Vec<u8>>,
    state: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let leaf = Rule::new(py, node, &sources)?.leaf;
    let element = leaf
        .decode_state(state)
        .and_then(|state| leaf.finish(&state));
    Ok(PyBytes::new(py, &element.unwrap_or_default()))
}

#[pyfunction]
#[pyo3(signature = (node, sources, arrays, digests, element, rows=None, windows=None))]
#[allow(clippy::too_many_arguments)] // keywords in Python
fn leaf_states<'py>(
    py: Python<'py>,
    node: &[u8],
    sources: Vec<Vec<u8>>,
    arrays: Vec<Tensor<'py>>,
    digests: Vec<Vec<u8>>,
    element: u64,
    rows: Option<Bound<'py, PyArray2<u8>>>,
    windows: Option<TokenForm>,
) -> PyResult<Bound<'py, PyBytes>> {
    let rule = Rule::new(py, node, &sources)?;
    let tensors = Tensors::new(py, arrays, &digests, rows, windows)?;
    let leaf = &rule.leaf;
    let states = tensors.read(py, &rule, element, |reader| {
        whole::states(leaf, element, reader)
    })?;
    Ok(PyBytes::new(py, &states))
}

#[pyfunction]
#[pyo3(signature = (node, sources, arrays, digests, element, block, rows=None, windows=None))]
#[allow(clippy::too_many_arguments)] // keywords in Python
fn leaf_reads<'py>(
    py: Python<'py>,
    node: &[u8],
    sources: Vec<Vec<u8>>,
    arrays: Vec<Tensor<'py>>,
    digests: Vec<Vec<u8>>,
    element: u64,
    block: u64,
    rows: Option<Bound<'py, PyArray2<u8>>>,
    windows: Option<TokenForm>,
) -> PyResult<Read> {
    let rule = Rule::new(py, node, &sources)?;
    if block >= rule.leaf.blocks() {
        return Err(rule.refuse(py, &format!("has no block {block}")));
    }
    let tensors = Tensors::new(py, arrays, &digests, rows, windows)?;
    let leaf = &rule.leaf;
    let reads = tensors.read(py, &rule, element, |reader| {
        whole::reads(leaf, element, block, reader)
    })?;
    Ok((reads.chunks, reads.rows, reads.tokens))
}

/// Bytes of `count` elements from `first` on, and for each input the chunks that are to be there
/// first: no bytes where there are such.
#[pyfunction]
#[pyo3(signature = (node, sources, arrays, there, digests, first, count, rows=None, windows=None, threads=0))]
#[allow(clippy::too_many_arguments)] // keywords in Python
fn leaf_values<'py>(
    py: Python<'py>,
    node: &[u8],
    sources: Vec<Vec<u8>>,
    arrays: Vec<Tensor<'py>>,
    there: Vec<PyReadonlyArray1<'py, u8>>,
    digests: Vec<Vec<u8>>,
    first: u64,
    count: usize,
    rows: Option<Bound<'py, PyArray2<u8>>>,
    windows: Option<TokenForm>,
    threads: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Vec<u64>>)> {
    let rule = Rule::new(py, node, &sources)?;
    let tensors = Tensors::new(py, arrays, &digests, rows, windows)?;
    let size = rule.leaf.output().size() as u64;
    let last = first.checked_add(count as u64).filter(|&end| end <= size);
    if count == 0 || last.is_none() {
        return Err(rule.refuse(py, &format!("has no {count} elements from {first} on")));
    }
    let there: Vec<&[u8]> = there
        .iter()
        .map(|chunks| {
            let chunks = chunks.as_slice();
            chunks.map_err(|error| PyTypeError::new_err(error.to_string()))
        })
        .collect::<PyResult<_>>()?;
    let leaf = &rule.leaf;
    let found = tensors.read(py, &rule, first, |reader| {
        let inputs = *reader;
        match run_on(threads, || {
            whole::values(leaf, first, count, &inputs, &there)
        }) {
            Ok(found) => found.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    })?;
    match found.map_err(|error| no_threads(py, &error))? {
        Parts::Values(bytes) => Ok((PyBytes::new(py, &bytes), vec![Vec::new(); there.len()])),
        Parts::Missing(chunks) => Ok((PyBytes::new(py, &[]), chunks)),
    }
}

/// The canonical ruling on a statement.
#[pyfunction]
fn referee_judge<'py>(py: Python<'py>, statement: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let ruling = py
        .detach(|| referee::judge(statement))
        .map_err(|refusal| typed(py, "RefusalError", &refusal.reason(), &refusal.place()))?;
    let ruling = ruling.encode();
    let ruling = ruling.map_err(|error| encoding(py, &error.to_string(), "ruling"))?;
    Ok(PyBytes::new(py, &ruling))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ChunkTree>()?;
    module.add_function(wrap_pyfunction!(fold_frontier, module)?)?;
    module.add_function(wrap_pyfunction!(fold_chunk_frontier, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_fold, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_finish, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_states, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_reads, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_values, module)?)?;
    module.add_function(wrap_pyfunction!(referee_judge, module)?)
}
