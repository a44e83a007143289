//! Digests, openings, Merkle trees and the sample order for Python.

use std::fmt::Display;
use std::slice;

use numpy::{IntoPyArray, PyArray1};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vtrain_core::domains::{Domain, Hash};
use vtrain_core::{merkle, order, tensor_digest as digest, threads};

use crate::engine::typed;

pyo3::import_exception!(vtrain.errors, EncodingError);
pyo3::import_exception!(vtrain.errors, TaskError);

#[cfg(target_endian = "big")]
compile_error!("tensor digests are of little-endian bytes; this host would have to swap them");

/// Runs `work` on that many threads with the GIL released; 0 is all cores.
pub(crate) fn detached<R: Send>(
    py: Python<'_>,
    threads: usize,
    work: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    py.detach(|| threads::run_on(threads, work))
        .map_err(|error| no_threads(py, &error))
}

/// What a machine says that starts no more threads.
pub(crate) fn no_threads(py: Python<'_>, error: &impl Display) -> PyErr {
    let message = format!("cannot start the threads: {error}");
    typed(py, "ResourcesError", &message, "threads")
}

/// Bytes of a C-contiguous, little-endian buffer, held for as long as this lives.
pub(crate) struct Bytes(PyUntypedBuffer);

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyTypeError::new_err("the buffer is not C-contiguous"));
        }
        if matches!(buffer.format().to_bytes().first(), Some(b'>' | b'!')) {
            return Err(PyTypeError::new_err("the buffer is not little-endian"));
        }
        Ok(Bytes(buffer))
    }
}

impl Bytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self.0.len_bytes() {
            0 => &[],
            // SAFETY: the exporter keeps `len_bytes` bytes at `buf_ptr` alive and in place while
            // the buffer is held, and the buffer is C-contiguous. Callers of this module are told
            // not to write to an array while it is being hashed, as for any numpy operation that
            // releases the GIL.
            length => unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), length) },
        }
    }
}

pub(crate) fn domain_named(context: &str) -> PyResult<Domain> {
    Domain::from_context(context)
        .ok_or_else(|| EncodingError::new_err(format!("unknown hash domain {context:?}")))
}

/// `None` when an item is not 32 bytes: hostile paths are false, not an exception.
pub(crate) fn hashes(items: &[Vec<u8>]) -> Option<Vec<Hash>> {
    items
        .iter()
        .map(|item| Hash::try_from(item.as_slice()).ok())
        .collect()
}

pub(crate) fn to_python<'py>(py: Python<'py>, hashes: &[Hash]) -> Vec<Bound<'py, PyBytes>> {
    hashes.iter().map(|hash| PyBytes::new(py, hash)).collect()
}

#[pyfunction]
#[pyo3(signature = (data, threads=0))]
fn tensor_digest<'py>(
    py: Python<'py>,
    data: Bytes,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let data = data.as_slice();
    // On this thread where others do not pay: no hop into a pool.
    let value = if threads == 1 || !digest::pays(data.len()) {
        py.detach(|| digest::digest(data))
    } else {
        detached(py, threads, || digest::digest_parallel(data))?
    };
    Ok(PyBytes::new(py, &value))
}

#[pyfunction]
#[pyo3(signature = (tensors, threads=0))]
fn tensor_digests<'py>(
    py: Python<'py>,
    tensors: Vec<Bytes>,
    threads: usize,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let tensors: Vec<&[u8]> = tensors.iter().map(Bytes::as_slice).collect();
    let length = tensors.iter().map(|data| data.len()).sum();
    let digests = if threads == 1 || !digest::pays(length) {
        py.detach(|| tensors.iter().map(|data| digest::digest(data)).collect())
    } else {
        detached(py, threads, || digest::digests_parallel(&tensors))?
    };
    Ok(to_python(py, &digests))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn chunk_opening<'py>(
    py: Python<'py>,
    data: Bytes,
    index: u64,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
    let refuse = |error: digest::NoSuchChunk| EncodingError::new_err(error.to_string());
    let path = py
        .detach(|| digest::chunk_path(data.as_slice(), index))
        .map_err(refuse)?;
    let chunk = digest::chunk_bytes(data.as_slice(), index).map_err(refuse)?;
    Ok((PyBytes::new(py, chunk), to_python(py, &path)))
}

#[pyfunction]
fn verify_chunk_opening(
    digest: Vec<u8>,
    length: u64,
    index: u64,
    chunk: Vec<u8>,
    path: Vec<Vec<u8>>,
) -> bool {
    match (Hash::try_from(digest), hashes(&path)) {
        (Ok(digest), Some(path)) => digest::verify_chunk(&digest, length, index, &chunk, &path),
        _ => false,
    }
}

#[pyfunction]
fn chunk_part_value<'py>(
    py: Python<'py>,
    data: Bytes,
    first: u64,
    is_root: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let value = py
        .detach(|| digest::part_value(data.as_slice(), first, is_root))
        .ok_or_else(|| EncodingError::new_err(format!("no part of a tensor at chunk {first}")))?;
    Ok(PyBytes::new(py, &value))
}

#[pyfunction]
fn join_chunk_values<'py>(
    py: Python<'py>,
    values: Vec<Vec<u8>>,
    is_root: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let value = hashes(&values)
        .and_then(|values| digest::join_values(&values, is_root))
        .ok_or_else(|| EncodingError::new_err("not two values of 32 bytes or more"))?;
    Ok(PyBytes::new(py, &value))
}

/// A growing list of leaves with the roots and proofs of all its prefixes.
#[pyclass(module = "vtrain._core")]
struct MerkleTree(merkle::MerkleTree);

fn no_such_leaf(error: merkle::NoSuchLeaf) -> PyErr {
    EncodingError::new_err(error.to_string())
}

#[pymethods]
impl MerkleTree {
    #[new]
    fn new(domain: &str) -> PyResult<Self> {
        Ok(MerkleTree(merkle::MerkleTree::new(domain_named(domain)?)))
    }

    fn append(&mut self, leaf: &[u8]) {
        self.0.append(leaf);
    }

    #[pyo3(signature = (data, leaf_len, threads=0))]
    fn extend_fixed(
        &mut self,
        py: Python<'_>,
        data: Bytes,
        leaf_len: usize,
        threads: usize,
    ) -> PyResult<()> {
        if leaf_len == 0 || !data.0.len_bytes().is_multiple_of(leaf_len) {
            return Err(EncodingError::new_err(
                "the data is not a whole number of leaves",
            ));
        }
        let tree = &mut self.0;
        detached(py, threads, || tree.extend_fixed(data.as_slice(), leaf_len))
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn root<'py>(&self, py: Python<'py>, size: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.root(size).map_err(no_such_leaf)?))
    }

    fn inclusion_path<'py>(
        &self,
        py: Python<'py>,
        index: u64,
        size: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(to_python(
            py,
            &self.0.inclusion_path(index, size).map_err(no_such_leaf)?,
        ))
    }

    fn frontier<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: u64,
        depth: u32,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let hashes = self.0.frontier(start, end, depth);
        let hashes = hashes.map_err(|error| EncodingError::new_err(error.to_string()))?;
        Ok(to_python(py, &hashes))
    }

    fn consistency_path<'py>(
        &self,
        py: Python<'py>,
        old_size: u64,
        new_size: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(to_python(
            py,
            &self
                .0
                .consistency_path(old_size, new_size)
                .map_err(no_such_leaf)?,
        ))
    }
}

#[pyfunction]
fn verify_inclusion(
    domain: &str,
    root: Vec<u8>,
    leaf: &[u8],
    index: u64,
    size: u64,
    path: Vec<Vec<u8>>,
) -> PyResult<bool> {
    let domain = domain_named(domain)?;
    Ok(match (Hash::try_from(root), hashes(&path)) {
        (Ok(root), Some(path)) => merkle::verify_inclusion(domain, &root, leaf, index, size, &path),
        _ => false,
    })
}

#[pyfunction]
fn verify_consistency(
    domain: &str,
    old_root: Vec<u8>,
    new_root: Vec<u8>,
    old_size: u64,
    new_size: u64,
    path: Vec<Vec<u8>>,
) -> PyResult<bool> {
    let domain = domain_named(domain)?;
    Ok(
        match (
            Hash::try_from(old_root),
            Hash::try_from(new_root),
            hashes(&path),
        ) {
            (Ok(old), Ok(new), Some(path)) => {
                merkle::verify_consistency(domain, &old, &new, old_size, new_size, &path)
            }
            _ => false,
        },
    )
}

#[pyfunction]
fn batch_indices<'py>(
    py: Python<'py>,
    seed: u64,
    n: u64,
    batch: u64,
    step: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let indices = order::batch_indices(seed, n, batch, step)
        .map_err(|error| TaskError::new_err(error.to_string()))?;
    Ok(indices.into_pyarray(py))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MerkleTree>()?;
    module.add_function(wrap_pyfunction!(tensor_digest, module)?)?;
    module.add_function(wrap_pyfunction!(tensor_digests, module)?)?;
    module.add_function(wrap_pyfunction!(chunk_opening, module)?)?;
    module.add_function(wrap_pyfunction!(verify_chunk_opening, module)?)?;
    module.add_function(wrap_pyfunction!(chunk_part_value, module)?)?;
    module.add_function(wrap_pyfunction!(join_chunk_values, module)?)?;
    module.add_function(wrap_pyfunction!(verify_inclusion, module)?)?;
    module.add_function(wrap_pyfunction!(verify_consistency, module)?)?;
    module.add_function(wrap_pyfunction!(batch_indices, module)?)?;
    Ok(())
}
