//! `vtrain._core`: the Python face of `vtrain-core`.

use pyo3::prelude::*;

mod algebraic;
mod bn254;
mod commit;
mod engine;
mod gemm;
mod referee;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    algebraic::register(module)?;
    bn254::register(module)?;
    commit::register(module)?;
    engine::register(module)?;
    gemm::register(module)?;
    referee::register(module)?;
    Ok(())
}
