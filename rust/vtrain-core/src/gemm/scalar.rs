//! The product by its definition, row by row; what the other paths are tested against.

use rayon::prelude::*;

use super::{Epilogue, MatRef};

/// Hands every row of `a * b` to the epilogue.
pub(super) fn run<E: Epilogue>(a: MatRef<'_>, b: MatRef<'_>, epilogue: &E) {
    if b.cols == 0 {
        return;
    }
    (0..a.rows).into_par_iter().for_each_init(
        || vec![0i64; b.cols],
        |acc, i| {
            acc.fill(0);
            for k in 0..a.cols {
                let x = a.at(i, k);
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc += x * b.at(k, j);
                }
            }
            // SAFETY: the shapes were compared, and row i is this closure's alone.
            unsafe { epilogue.store(i, 0, acc) };
        },
    );
}
