//! `vtrain._core`: the Python face of `vtrain-core`.

use pyo3::prelude::*;

mod commit;
mod engine;
mod gemm;
mod referee;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    commit::register(module)?;
    engine::register(module)?;
    gemm::register(module)?;
    referee::register(module)?;
    Ok(())
}
