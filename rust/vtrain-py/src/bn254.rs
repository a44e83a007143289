//! Sums over BN254, commitments to columns and lists of powers for Python.

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

/// What commits to columns of integers as halo2 does to unblinded ones.
#[pyclass(module = "vtrain._core", frozen)]
struct KzgKey(bn254::CommitKey);

#[pymethods]
impl KzgKey {
    #[new]
    #[pyo3(signature = (points, blinding, is_lagrange=true, threads=0))]
    fn new(
        py: Python<'_>,
        points: Bytes,
        blinding: usize,
        is_lagrange: bool,
        threads: usize,
    ) -> PyResult<Self> {
        let make = || {
            let points = bn254::G1Points::read(points.as_slice(), 0)?;
            let basis = if is_lagrange {
                points
            } else {
                points.into_lagrange()?
            };
            bn254::CommitKey::new(basis, blinding)
        };
        Ok(KzgKey(detached(py, threads, make)?.map_err(refuse)?))
    }

    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    #[pyo3(signature = (columns, threads=0))]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<(Bytes, String, Bytes)>,
        threads: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let columns = columns
            .iter()
            .map(|(bytes, dtype, hiding)| {
                let kind = bn254::Integers::named(dtype)?;
                Ok((bytes.as_slice(), kind, hiding.as_slice()))
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(refuse)?;
        let points = detached(py, threads, || self.0.commit_many(&columns))?;
        let points = points.map_err(refuse)?;
        Ok(points.iter().map(|point| PyBytes::new(py, point)).collect())
    }

    #[pyo3(signature = (scalars, threads=0))]
    fn commit_scalars<'py>(
        &self,
        py: Python<'py>,
        scalars: Bytes,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let point = detached(py, threads, || self.0.commit_scalars(scalars.as_slice()))?;
        Ok(PyBytes::new(py, &point.map_err(refuse)?))
    }

    #[pyo3(signature = (commitments, coefficients, threads=0))]
    fn combine<'py>(
        &self,
        py: Python<'py>,
        commitments: Bytes,
        coefficients: Bytes,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let combine = || {
            self.0
                .combine(commitments.as_slice(), coefficients.as_slice())
        };
        let point = detached(py, threads, combine)?;
        Ok(PyBytes::new(py, &point.map_err(refuse)?))
    }
}

/// The points of a list of powers whose secret is known, for trials.
#[pyclass(module = "vtrain._core", frozen)]
struct SrsSecret(bn254::Secret);

#[pymethods]
impl SrsSecret {
    #[new]
    #[pyo3(signature = (tau, k, threads=0))]
    fn new(py: Python<'_>, tau: Bytes, k: u32, threads: usize) -> PyResult<Self> {
        let secret = detached(py, threads, || bn254::Secret::new(tau.as_slice(), k))?;
        Ok(SrsSecret(secret.map_err(refuse)?))
    }

    #[pyo3(signature = (start, count, threads=0))]
    fn powers<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        count: usize,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let points = detached(py, threads, || self.0.powers(start, count))?;
        Ok(PyBytes::new(py, &points))
    }

    #[pyo3(signature = (start, count, threads=0))]
    fn lagrange<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        count: usize,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let points = detached(py, threads, || self.0.lagrange(start, count))?;
        Ok(PyBytes::new(py, &points))
    }

    fn second_group<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.second_group())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<G1Points>()?;
    module.add_class::<KzgKey>()?;
    module.add_class::<SrsSecret>()
}
