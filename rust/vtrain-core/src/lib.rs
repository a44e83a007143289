//! The Rust core of vtrain: exact integer operators, commitment trees and openings.
//!
//! Nothing here knows of Python; `vtrain-py` binds it as `vtrain._core`.

pub mod algebraic;
pub mod bn254;
pub mod cbor;
mod cpu;
pub mod curves;
pub mod domains;
pub mod engine;
pub mod gemm;
pub mod graph;
pub mod merkle;
pub mod number;
pub mod ops;
pub mod order;
pub mod philox;
pub mod referee;
pub mod tables;
pub mod tensor_digest;
pub mod threads;
pub mod window;
