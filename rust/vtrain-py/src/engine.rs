//! The cpu engine and single nodes for Python.

use std::str::FromStr;

use numpy::{
    Element, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyReadonlyArrayDyn,
    PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use vtrain_core::engine::{self, Checked, EngineError, SampleForms, Signed};
use vtrain_core::gemm::{Gemm, GemmError, Path};
use vtrain_core::graph::{GraphDecodeError, Node, StepGraph};
use vtrain_core::number::Dtype;
use vtrain_core::ops::{self, Form, Slice, Windows};
use vtrain_core::threads::run_on;

use crate::commit::no_threads;

/// The error of `vtrain.errors` named `class`, with its place.
pub(crate) fn typed(py: Python<'_>, class: &str, message: &str, place: &str) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let keywords = PyDict::new(py);
        keywords.set_item("where", place)?;
        let error = py
            .import("vtrain.errors")?
            .getattr(class)?
            .call((message,), Some(&keywords))?;
        Ok(PyErr::from_value(error))
    };
    make().unwrap_or_else(|error| error)
}

pub(crate) fn decode_error(py: Python<'_>, error: &GraphDecodeError) -> PyErr {
    match error {
        GraphDecodeError::Encoding(error) => typed(
            py,
            "EncodingError",
            &error.reason.to_string(),
            &format!("byte {}", error.offset),
        ),
        GraphDecodeError::Field { place, reason } => typed(py, "EncodingError", reason, place),
    }
}

fn engine_error(py: Python<'_>, error: &EngineError) -> PyErr {
    match error {
        EngineError::Decode(error) => decode_error(py, error),
        EngineError::Node { place, reason } => typed(py, "GraphError", reason, place),
        EngineError::State { name, reason } => {
            typed(py, "RunError", reason, &format!("state.{name}"))
        }
        EngineError::NoState => typed(py, "RunError", &error.to_string(), "state"),
        EngineError::Samples { .. } => typed(py, "DataError", &error.to_string(), "samples"),
        EngineError::Gemm(error) => gemm_error(py, error),
        EngineError::Threads(_) | EngineError::Memory(_) => {
            typed(py, "ResourcesError", &error.to_string(), "engine")
        }
        other => typed(py, "RunError", &other.to_string(), "engine"),
    }
}

fn gemm_error(py: Python<'_>, error: &GemmError) -> PyErr {
    typed(py, "RunError", &error.to_string(), "engine")
}

fn path_named(name: &str) -> Result<Path, GemmError> {
    if name == "auto" {
        Ok(Path::best())
    } else {
        Path::from_str(name)
    }
}

fn form(py: Python<'_>, dtype: &str, shape: Vec<usize>) -> PyResult<Form> {
    let dtype = Dtype::from_name(dtype).ok_or_else(|| {
        typed(
            py,
            "DataError",
            &format!("unknown dtype {dtype:?}"),
            "samples",
        )
    })?;
    Form::new(dtype, shape).map_err(|error| typed(py, "DataError", &error.0, "samples"))
}

/// A C-contiguous array of one of the five dtypes.
pub(crate) enum Tensor<'py> {
    U8(PyReadonlyArrayDyn<'py, u8>),
    I8(PyReadonlyArrayDyn<'py, i8>),
    I16(PyReadonlyArrayDyn<'py, i16>),
    I32(PyReadonlyArrayDyn<'py, i32>),
    I64(PyReadonlyArrayDyn<'py, i64>),
}

impl<'py> FromPyObject<'_, 'py> for Tensor<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        fn of<'py, T: Element>(object: &Bound<'py, PyAny>) -> Option<PyReadonlyArrayDyn<'py, T>> {
            object.cast::<PyArrayDyn<T>>().ok()?.try_readonly().ok()
        }
        if !object.cast::<PyUntypedArray>()?.is_c_contiguous() {
            return Err(PyTypeError::new_err("the array is not C-contiguous"));
        }
        of(&object)
            .map(Self::U8)
            .or_else(|| of(&object).map(Self::I8))
            .or_else(|| of(&object).map(Self::I16))
            .or_else(|| of(&object).map(Self::I32))
            .or_else(|| of(&object).map(Self::I64))
            .ok_or_else(|| PyTypeError::new_err("the array has none of the dtypes of a tensor"))
    }
}

impl Tensor<'_> {
    pub(crate) fn slice(&self) -> PyResult<Slice<'_>> {
        fn of<'a, T: Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> PyResult<Slice<'a>>
        where
            Slice<'a>: From<&'a [T]>,
        {
            array
                .as_slice()
                .map(Slice::from)
                .map_err(|e| PyTypeError::new_err(e.to_string()))
        }
        match self {
            Self::U8(array) => of(array),
            Self::I8(array) => of(array),
            Self::I16(array) => of(array),
            Self::I32(array) => of(array),
            Self::I64(array) => of(array),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Self::U8(array) => array.shape().to_vec(),
            Self::I8(array) => array.shape().to_vec(),
            Self::I16(array) => array.shape().to_vec(),
            Self::I32(array) => array.shape().to_vec(),
            Self::I64(array) => array.shape().to_vec(),
        }
    }
}

/// A new array with these elements.
fn to_array<'py>(py: Python<'py>, shape: &[usize], x: Slice<'_>) -> PyResult<Bound<'py, PyAny>> {
    fn of<'py, T: Element>(
        py: Python<'py>,
        shape: &[usize],
        x: &[T],
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyArray1::from_slice(py, x).reshape(shape)?.into_any())
    }
    match x {
        Slice::U8(x) => of(py, shape, x),
        Slice::I8(x) => of(py, shape, x),
        Slice::I16(x) => of(py, shape, x),
        Slice::I32(x) => of(py, shape, x),
        Slice::I64(x) => of(py, shape, x),
    }
}

type Record<'py> = (i64, Bound<'py, PyBytes>, i64, Bound<'py, PyBytes>);

fn to_record<'py>(py: Python<'py>, record: &engine::Record) -> Record<'py> {
    let root = record.state_root.as_ref().map_or(&[][..], |root| root);
    let batch_digest = PyBytes::new(py, &record.batch_digest);
    (
        record.step,
        batch_digest,
        record.loss,
        PyBytes::new(py, root),
    )
}

/// A step graph bound to a table of samples, with the state of a run.
#[pyclass(module = "vtrain._core")]
struct Engine {
    inner: engine::Engine,
    table: Py<PyArray2<u8>>,
}

impl Engine {
    /// Runs `work` on the engine and the table without the GIL.
    fn detached<R: Send>(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut engine::Engine, &[u8]) -> Result<R, EngineError> + Send,
    ) -> PyResult<R> {
        let table = self.table.bind(py).try_readonly();
        let table = table.map_err(|error| PyTypeError::new_err(error.to_string()))?;
        let bytes = table
            .as_slice()
            .map_err(|error| PyTypeError::new_err(error.to_string()))?;
        let inner = &mut self.inner;
        py.detach(|| work(inner, bytes))
            .map_err(|error| engine_error(py, &error))
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[allow(clippy::too_many_arguments)] // what Python hands over
    #[pyo3(signature = (graph, table, x_form, y_form, threads=0, path="auto", windows=None))]
    fn new(
        py: Python<'_>,
        graph: &[u8],
        table: Bound<'_, PyArray2<u8>>,
        x_form: (String, Vec<usize>),
        y_form: (String, Vec<usize>),
        threads: usize,
        path: &str,
        windows: Option<(usize, usize, usize, usize)>,
    ) -> PyResult<Self> {
        if !table.is_c_contiguous() {
            return Err(PyTypeError::new_err("the table is not C-contiguous"));
        }
        let windows = windows.map(|(width, tokens, stride, shift)| Windows {
            width,
            tokens,
            stride,
            shift,
        });
        let (x, y) = (
            form(py, &x_form.0, x_form.1)?,
            form(py, &y_form.0, y_form.1)?,
        );
        let samples = SampleForms {
            count: windows.map_or(table.shape()[0], |windows| windows.count(x.size())),
            x,
            y,
            windows,
        };
        let path = path_named(path).map_err(|error| gemm_error(py, &error))?;
        let inner = py
            .detach(|| engine::Engine::new(&StepGraph::decode(graph)?, samples, threads, path))
            .map_err(|error| engine_error(py, &error))?;
        Ok(Self {
            inner,
            table: table.unbind(),
        })
    }

    fn load_state(&mut self, py: Python<'_>, name: &str, value: Tensor<'_>) -> PyResult<()> {
        let slice = value.slice()?;
        self.inner
            .load_state(name, slice)
            .map_err(|error| engine_error(py, &error))
    }

    fn read_state<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let states = self.inner.states().iter().enumerate();
        states
            .map(|(index, state)| {
                let value = self
                    .inner
                    .read_state(index)
                    .map_err(|error| engine_error(py, &error))?;
                Ok((state.name.clone(), to_array(py, &state.form.shape, value)?))
            })
            .collect()
    }

    fn step<'py>(&mut self, py: Python<'py>) -> PyResult<Record<'py>> {
        let record = self.detached(py, engine::Engine::step)?;
        Ok(to_record(py, &record))
    }

    fn trace<'py>(&mut self, py: Python<'py>) -> PyResult<(Record<'py>, Vec<Bound<'py, PyBytes>>)> {
        let (record, digests) = self.detached(py, engine::Engine::trace)?;
        let digests = digests
            .iter()
            .map(|digest| PyBytes::new(py, digest))
            .collect();
        Ok((to_record(py, &record), digests))
    }

    fn evaluate<'py>(
        &mut self,
        py: Python<'py>,
        nodes: Vec<usize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let values = self.detached(py, |inner, table| {
            inner.evaluate(table, &nodes, |form, x| {
                (form.shape.clone(), form.dtype, x.bytes().to_vec())
            })
        })?;
        let arrays = values.into_iter().map(|(shape, dtype, bytes)| {
            let flat = PyArray1::from_vec(py, bytes);
            flat.call_method1("view", (format!("{}{}", &dtype.name()[..1], dtype.size()),))?
                .call_method1("reshape", (shape,))
        });
        arrays.collect()
    }

    /// The node at which a check of the next step's values against signed digests ends, if it does.
    fn check(
        &mut self,
        py: Python<'_>,
        digests: &[u8],
        vectors: Vec<PyReadonlyArray1<'_, u64>>,
        read: Py<PyAny>,
    ) -> PyResult<Option<usize>> {
        let digests: Vec<[u8; 32]> = digests.as_chunks().0.to_vec();
        let vectors: Vec<&[u64]> = vectors
            .iter()
            .map(|vector| {
                vector
                    .as_slice()
                    .map_err(|error| PyTypeError::new_err(error.to_string()))
            })
            .collect::<PyResult<_>>()?;
        let take = |node: usize, out: &mut [i64]| -> PyResult<bool> {
            Python::attach(|py| {
                let found = read.call1(py, (node,))?;
                if found.is_none(py) {
                    return Ok(false);
                }
                let array = found.bind(py).cast::<PyArrayDyn<i64>>()?.try_readonly();
                let array = array.map_err(|error| PyTypeError::new_err(error.to_string()))?;
                let elements = array.as_slice();
                let elements = elements.map_err(|error| PyTypeError::new_err(error.to_string()))?;
                if elements.len() != out.len() {
                    return Err(PyTypeError::new_err("the output has another size"));
                }
                out.copy_from_slice(elements);
                Ok(true)
            })
        };
        let checked = self.detached(py, |inner, table| {
            let signed = Signed {
                digests: &digests,
                vectors: &vectors,
            };
            inner.check(table, signed, take)
        })??;
        Ok(match checked {
            Checked::Right => None,
            Checked::Stopped(node) => Some(node),
        })
    }

    fn saturation(&self) -> Vec<(String, u64)> {
        let counts = self
            .inner
            .names()
            .iter()
            .cloned()
            .zip(self.inner.saturated().iter().copied());
        counts.filter(|&(_, count)| count > 0).collect()
    }

    fn start_profile(&mut self) {
        self.inner.start_profile();
    }

    fn profile(&self) -> Vec<(String, f64)> {
        let times = self
            .inner
            .profile()
            .iter()
            .map(std::time::Duration::as_secs_f64);
        self.inner.names().iter().cloned().zip(times).collect()
    }

    #[getter]
    fn check_memory(&self) -> usize {
        self.inner.check_memory()
    }

    #[getter]
    fn memory(&self) -> usize {
        self.inner.memory()
    }
}

/// Output of one node by its law.
#[pyfunction]
#[pyo3(signature = (node, inputs, threads=0, path="auto"))]
fn apply_node<'py>(
    py: Python<'py>,
    node: &[u8],
    inputs: Vec<Tensor<'py>>,
    threads: usize,
    path: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let node = Node::decode(node).map_err(|error| decode_error(py, &error))?;
    let place = format!("node {} ({})", node.name, node.op);
    let refuse = |reason: String| typed(py, "GraphError", &reason, &place);
    let mut gemm = path_named(path)
        .and_then(Gemm::new)
        .map_err(|error| gemm_error(py, &error))?;
    let tensors: Vec<ops::Input<'_>> = inputs
        .iter()
        .map(|tensor| {
            let slice = tensor.slice()?;
            let form = Form::new(slice.dtype(), tensor.shape());
            Ok((form.map_err(|error| refuse(error.0))?, slice))
        })
        .collect::<PyResult<_>>()?;
    let done = py.detach(|| run_on(threads, || ops::apply_node(&node, &tensors, &mut gemm)));
    let (form, out) = done
        .map_err(|error| no_threads(py, &error))?
        .map_err(|error| refuse(error.to_string()))?;
    to_array(py, &form.shape, out.slice(form.dtype, form.size()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Engine>()?;
    module.add_function(wrap_pyfunction!(apply_node, module)?)
}
