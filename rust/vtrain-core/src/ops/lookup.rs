//! Functions by table: twin of `vtrain/ops/lookup.py`.

use crate::curves::{CURVE_ONE, CURVES, Curve, Symmetry};
use crate::number::Rounding;

/// The function of this name.
pub fn find(name: &str) -> Option<&'static Curve> {
    CURVES.iter().find(|curve| curve.name == name)
}

/// T\[j\], j held to the ends of the table.
#[inline]
pub fn entry(curve: &Curve, j: i64) -> i16 {
    let last = curve.entries.len() - 1;
    let at = usize::try_from(j.unsigned_abs()).map_or(last, |at| at.min(last));
    let value = curve.entries[at];
    if j >= 0 {
        return value;
    }
    match curve.symmetry {
        Symmetry::Complement => CURVE_ONE - value,
        Symmetry::Odd => -value,
        Symmetry::Even => value,
    }
}

/// T\[rs(x, shift)\] of each element.
pub fn look_up(curve: &Curve, shift: Rounding, x: &[i16], out: &mut [i16]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = entry(curve, shift.apply(x.into()));
    }
}
