//! Freivalds' check for Python.

use numpy::{
    PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyReadonlyArrayDyn, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use vtrain_core::algebraic::{self, Claimed};
use vtrain_core::ops::linear::Product;
use vtrain_core::threads::run_on;

use crate::commit::no_threads;
use crate::engine::typed;

/// The elements of an array that lies row by row.
fn dense<'a, T: numpy::Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> PyResult<&'a [T]> {
    if !array.is_c_contiguous() {
        return Err(PyTypeError::new_err("the array is not C-contiguous"));
    }
    array
        .as_slice()
        .map_err(|error| PyTypeError::new_err(error.to_string()))
}

/// The last two extents of a stack of matrices, the other way round if `transpose`.
fn extents(shape: &[usize], transpose: bool) -> PyResult<(usize, usize)> {
    match (shape, transpose) {
        ([.., rows, columns], false) => Ok((*rows, *columns)),
        ([.., columns, rows], true) => Ok((*rows, *columns)),
        _ => Err(PyTypeError::new_err("the array is no matrix")),
    }
}

/// The first wrong element of a claimed stack of products, flat, that the vectors show.
#[pyfunction]
#[pyo3(signature = (a, b, c, transpose_a, transpose_b, lo, hi, vectors, threads=0))]
#[allow(clippy::too_many_arguments)] // what Python hands over
fn find_wrong_product(
    py: Python<'_>,
    a: PyReadonlyArrayDyn<'_, i16>,
    b: PyReadonlyArrayDyn<'_, i16>,
    c: &Bound<'_, PyArrayDyn<i64>>,
    transpose_a: bool,
    transpose_b: bool,
    lo: i64,
    hi: i64,
    vectors: Vec<PyReadonlyArray1<'_, u64>>,
    threads: usize,
) -> PyResult<Option<usize>> {
    let refuse = |message: &str| typed(py, "GraphError", message, "product");
    let c = c
        .try_readonly()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let (m, k) = extents(a.shape(), transpose_a)?;
    let (inner, n) = extents(b.shape(), transpose_b)?;
    let stack = |shape: &[usize]| shape[..shape.len() - 2].to_vec();
    let stacks = stack(a.shape());
    if c.ndim() < 2
        || k != inner
        || stack(b.shape()) != stacks
        || c.shape() != [&stacks[..], &[m, n]].concat()
    {
        return Err(refuse("the matrices do not have the extents of a product"));
    }
    let claimed = Claimed {
        product: Product {
            m,
            k,
            n,
            transpose_a,
            transpose_b,
        },
        stack: stacks.iter().product(),
        a: dense(&a)?,
        b: dense(&b)?,
        c: dense(&c)?,
        range: (lo, hi),
    };
    let vectors: Vec<&[u64]> = vectors
        .iter()
        .map(|vector| {
            vector
                .as_slice()
                .map_err(|error| PyTypeError::new_err(error.to_string()))
        })
        .collect::<PyResult<_>>()?;
    py.detach(|| run_on(threads, || algebraic::find_wrong(&claimed, &vectors)))
        .map_err(|error| no_threads(py, &error))?
        .map_err(|error| refuse(&error.to_string()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_wrong_product, module)?)
}
