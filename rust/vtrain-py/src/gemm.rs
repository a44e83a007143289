//! The exact int16 product for Python.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use vtrain_core::gemm::{Epilogue, Gemm, GemmError, MatRef, Path, RescaleI16, StoreI64};
use vtrain_core::threads::run_on;

use crate::commit::no_threads;

pyo3::import_exception!(vtrain.errors, GraphError);

/// Contexts that no call is using: packing buffers outlive a call.
static IDLE: Mutex<Vec<Gemm>> = Mutex::new(Vec::new());

fn refuse(error: GemmError) -> PyErr {
    GraphError::new_err(error.to_string())
}

/// Refuses an array whose elements do not lie row by row: numpy calls columns contiguous, too.
fn check_dense<T: Element, D: Dimension>(array: &Bound<'_, PyArray<T, D>>) -> PyResult<()> {
    if array.is_c_contiguous() {
        return Ok(());
    }
    Err(PyTypeError::new_err("the array is not C-contiguous"))
}

/// A context for the named path, an idle one if there is; "auto" is the fastest.
fn take_context(path: &str) -> Result<Gemm, GemmError> {
    let path = match path {
        "auto" => Path::best(),
        name => Path::from_str(name)?,
    };
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    match idle.iter().position(|gemm| gemm.path() == path) {
        Some(at) => Ok(idle.swap_remove(at)),
        None => Gemm::new(path),
    }
}

/// The operand as a matrix; `transpose` if it is stored the other way round.
fn operand<'a>(array: &'a PyReadonlyArray2<'_, i16>, transpose: bool) -> PyResult<MatRef<'a>> {
    let dims = array.as_array().dim();
    check_dense(array)?;
    let data = array.as_slice()?;
    let view = MatRef::row_major(data, dims.0, dims.1).map_err(refuse)?;
    Ok(if transpose { view.t() } else { view })
}

/// The array to fill: `out` if it is given (its shape is the epilogue's to check), else a new one.
fn output<'py, T: Element>(
    py: Python<'py>,
    out: Option<Bound<'py, PyArray2<T>>>,
    a: MatRef<'_>,
    b: MatRef<'_>,
) -> PyResult<Bound<'py, PyArray2<T>>> {
    let out = out.unwrap_or_else(|| PyArray2::zeros(py, [a.rows(), b.cols()], false));
    check_dense(&out)?;
    Ok(out)
}

fn run<E: Epilogue>(
    py: Python<'_>,
    (a, b): (MatRef<'_>, MatRef<'_>),
    epilogue: &E,
    path: &str,
    threads: usize,
) -> PyResult<()> {
    let mut gemm = take_context(path).map_err(refuse)?;
    let done = py.detach(|| run_on(threads, || gemm.run(a, b, epilogue)));
    IDLE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(gemm);
    done.map_err(|error| no_threads(py, &error))?
        .map_err(refuse)
}

/// Names of the paths that this machine can run, slowest first.
#[pyfunction]
fn gemm_paths() -> Vec<&'static str> {
    Path::available().map(Path::name).collect()
}

/// The exact int64 sums of the products of two int16 matrices.
#[pyfunction]
#[pyo3(signature = (a, b, transpose_a=false, transpose_b=false, path="auto", threads=0, out=None))]
#[allow(clippy::too_many_arguments)] // keywords in Python
fn gemm_i64<'py>(
    py: Python<'py>,
    a: PyReadonlyArray2<'py, i16>,
    b: PyReadonlyArray2<'py, i16>,
    transpose_a: bool,
    transpose_b: bool,
    path: &str,
    threads: usize,
    out: Option<Bound<'py, PyArray2<i64>>>,
) -> PyResult<Bound<'py, PyArray2<i64>>> {
    let (a, b) = (operand(&a, transpose_a)?, operand(&b, transpose_b)?);
    let out = output(py, out, a, b)?;
    let mut target = out
        .try_readwrite()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let (m, n) = target.as_array().dim();
    let data = target.as_slice_mut()?;
    run(
        py,
        (a, b),
        &StoreI64::new(data, m, n).map_err(refuse)?,
        path,
        threads,
    )?;
    drop(target);
    Ok(out)
}

/// The same rescaled to int16, and how many elements saturated before the ReLU.
#[pyfunction]
#[pyo3(signature = (
    a, b, shift, bias=None, relu=false, transpose_a=false, transpose_b=false, path="auto",
    threads=0, out=None,
))]
#[allow(clippy::too_many_arguments)] // keywords in Python
fn gemm_rescale_i16<'py>(
    py: Python<'py>,
    a: PyReadonlyArray2<'py, i16>,
    b: PyReadonlyArray2<'py, i16>,
    shift: i32,
    bias: Option<PyReadonlyArray1<'py, i64>>,
    relu: bool,
    transpose_a: bool,
    transpose_b: bool,
    path: &str,
    threads: usize,
    out: Option<Bound<'py, PyArray2<i16>>>,
) -> PyResult<(Bound<'py, PyArray2<i16>>, u64)> {
    let (a, b) = (operand(&a, transpose_a)?, operand(&b, transpose_b)?);
    let bias = bias.as_ref().map(|bias| bias.as_slice()).transpose()?;
    let out = output(py, out, a, b)?;
    let mut target = out
        .try_readwrite()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let (m, n) = target.as_array().dim();
    let data = target.as_slice_mut()?;
    let epilogue = RescaleI16::new(data, m, n, shift, bias, relu).map_err(refuse)?;
    run(py, (a, b), &epilogue, path, threads)?;
    let saturated = epilogue.saturated();
    drop(target);
    Ok((out, saturated))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(gemm_paths, module)?)?;
    module.add_function(wrap_pyfunction!(gemm_i64, module)?)?;
    module.add_function(wrap_pyfunction!(gemm_rescale_i16, module)?)
}
