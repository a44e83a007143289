//! Functions by table: twin of `vtrain/ops/lookup.py`.

use super::simd::vectorised;
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
///
/// Places and signs are vectorised; the loads from a table that stays in the first cache are not:
/// a gather is no faster.
pub fn look_up(curve: &Curve, shift: Rounding, x: &[i16], out: &mut [i16]) {
    const CHUNK: usize = 512;
    let last = (curve.entries.len() - 1).min(i16::MAX as usize) as i64;
    let mut places = [0i16; CHUNK];
    for (x, out) in x.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let places = &mut places[..x.len()];
        let found = &mut *places;
        vectorised(
            #[inline(always)]
            move || {
                for (place, &x) in found.iter_mut().zip(x) {
                    *place = shift.apply(x.into()).clamp(-last, last) as i16;
                }
            },
        );
        for (out, place) in out.iter_mut().zip(&*places) {
            let at = usize::from(place.unsigned_abs());
            *out = curve.entries.get(at).copied().unwrap_or(0);
        }
        let (places, symmetry) = (&*places, curve.symmetry);
        vectorised(
            #[inline(always)]
            move || {
                let (one, sign) = match symmetry {
                    Symmetry::Complement => (CURVE_ONE, -1),
                    Symmetry::Odd => (0, -1),
                    Symmetry::Even => (0, 1),
                };
                for (out, &place) in out.iter_mut().zip(places) {
                    *out = if place < 0 { one + sign * *out } else { *out };
                }
            },
        );
    }
}
