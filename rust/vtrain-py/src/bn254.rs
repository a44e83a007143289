//! Sums over BN254 for Python.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vtrain_core::bn254;

use crate::commit::{Bytes, detached};

pyo3::import_exception!(vtrain.errors, EncodingError);

fn refuse(error: bn254::Bn254Error) -> PyErr {
    EncodingError::new_err(error.to_string())
}

/// Finite points of the first group of BN254, each found to be on the curve.
#[pyclass(module = "vtrain._core", frozen)]
struct G1Points(bn254::G1Points);

#[pymethods]
impl G1Points {
    #[new]
    #[pyo3(signature = (raw, first=0, threads=0))]
    fn new(py: Python<'_>, raw: Bytes, first: usize, threads: usize) -> PyResult<Self> {
        let points = detached(py, threads, || bn254::G1Points::read(raw.as_slice(), first))?;
        Ok(G1Points(points.map_err(refuse)?))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[pyo3(signature = (scalars, threads=0))]
    fn combine<'py>(
        &self,
        py: Python<'py>,
        scalars: Bytes,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let sum = detached(py, threads, || self.0.combine(scalars.as_slice()))?;
        Ok(PyBytes::new(py, &sum.map_err(refuse)?))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<G1Points>()
}
