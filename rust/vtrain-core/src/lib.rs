//! The Rust core of vtrain: exact integer operators, commitment trees and openings.
//!
//! Nothing here knows of Python; `vtrain-py` binds it as `vtrain._core`.

pub mod gemm;
