//! The referee of a dispute: recomputes one block of one fold from opened chunks, and judges.
//!
//! [`fold`] has the leaf rule of every operator: an output element is a fold over terms, cut into
//! blocks that each touch few chunks. [`whole`] runs the same rules over tensors in memory, for the
//! parties; [`judge()`] runs one block over what a [`Statement`] opens, for the referee.

pub mod fold;
mod judge;
mod statement;
pub mod whole;

pub use fold::{Leaf, MAX_CHUNKS, Reader, State, Stop, Tokens, input_forms};
pub use judge::{Ruling, judge};
pub use statement::{Chunk, Input, Member, Opened, Refusal, Row, Statement, Tree};
