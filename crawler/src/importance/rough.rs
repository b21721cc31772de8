//! Numbers in a byte each, of one scale: a sign, five bits of exponent, two of precision.
//!
//! ```text
//!   sign · m, m = 0 to 127        0: nothing        m: scale · (1 + f/4) · 2^(e − 31), where m − 1 = 4e + f
//! ```
//!
//! A number is told to an eighth of itself, down to 2⁻³¹ of the largest of its scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A number to one digit, but for its scale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Rough(u8);

/// Bits of a 64-bit float below the two of precision.
const BELOW: u32 = f64::MANTISSA_DIGITS - 1 - 2;
/// Exponent and precision of 2⁻³¹, which is m = 1, less one.
const NOTHING: u64 = ((1023 - 31) << 2) - 1;
const SIGN: u8 = 0x80;

/// What each byte is of a scale of 1.
#[expect(clippy::indexing_slicing, reason = "when it is compiled")]
const VALUES: [f64; 256] = {
    let (mut all, mut m) = ([0.0; 256], 1);
    while m < 128 {
        let value = f64::from_bits((NOTHING + m as u64) << BELOW);
        (all[m], all[m + SIGN as usize]) = (value, -value);
        m += 1;
    }
    all
};

impl Rough {
    /// The next one that is nearer to nothing.
    pub(crate) fn smaller(self) -> Self {
        if self.0 & !SIGN == 0 { self } else { Self(self.0 - 1) }
    }
}

/// What numbers are told by: a power of two, more than the largest of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    by: f64,
    inverse: f64,
}

impl Scale {
    /// The scale of numbers that are no larger than this, by their size.
    pub(crate) fn of(largest: f64) -> Self {
        // Within what has an inverse.
        let exponent = (largest.to_bits() >> (f64::MANTISSA_DIGITS - 1) & 0x7ff).clamp(1, 2043) + 1;
        let power = |exponent: u64| f64::from_bits(exponent << (f64::MANTISSA_DIGITS - 1));
        Self { by: power(exponent), inverse: power(2046 - exponent) }
    }

    /// The nearest number of this scale; the largest, if it is larger, and nothing, if it is smaller than all.
    pub(crate) fn rough(self, value: f64) -> Rough {
        let bits = (value.abs() * self.inverse).to_bits();
        let m = ((bits + (1 << (BELOW - 1))) >> BELOW).saturating_sub(NOTHING).min(127) as u8;
        Rough(if value.is_sign_negative() && m > 0 { m | SIGN } else { m })
    }

    #[inline]
    pub(crate) fn value(self, rough: Rough) -> f64 {
        let Some(value) = VALUES.get(usize::from(rough.0)) else { return 0.0 };
        value * self.by
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::of(1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_value_to_an_eighth(largest in 1e-300f64..1e300, smaller in 0i32..30, part in -1f64..1.0) {
            let (scale, value) = (Scale::of(largest), largest * part / 2f64.powi(smaller));
            let rough = scale.value(scale.rough(value));
            if value.abs() > largest / 2f64.powi(30) {
                prop_assert!((rough - value).abs() <= value.abs() / 8.0, "{value:e} became {rough:e}");
            } else {
                prop_assert!((rough - value).abs() <= value.abs(), "{value:e} became {rough:e}");
            }
            prop_assert_eq!(scale.value(scale.rough(rough)), rough);
        }
    }

    #[test]
    fn the_next_smaller_one_is_nearer_to_nothing() {
        let scale = Scale::of(1.0);
        for value in [1.0, 0.3, -0.3, 2f64.powi(-30), -2f64.powi(-30)] {
            let rough = scale.rough(value);
            let (smaller, same) = (scale.value(rough.smaller()), scale.value(rough));
            assert!(smaller.abs() < same.abs() && smaller * same >= 0.0, "{value}: {smaller} and {same}");
        }
        assert_eq!(scale.value(Rough::default().smaller()), 0.0);
        assert_eq!(
            scale.value(
                scale.rough(-2f64.powi(-30)).smaller().smaller().smaller().smaller().smaller().smaller()
            ),
            0.0
        );
    }

    #[test]
    fn the_ends_of_the_range() {
        let scale = Scale::of(1.0);
        let told = |value| scale.value(scale.rough(value));
        assert_eq!([0.0, -0.0, 1e-10, -1e-60].map(told), [0.0; 4]);
        assert_eq!([1.0, 1.1, 1.2, -1.3, -1.99].map(told), [1.0, 1.0, 1.25, -1.25, -2.0]);
        assert_eq!([7.0, -f64::INFINITY].map(told), [3.0, -3.0], "the rest is owed");
        assert_eq!(told(2f64.powi(-30)), 2f64.powi(-30));
        let told = |largest| Scale::of(largest).value(Scale::of(largest).rough(largest));
        assert_eq!(told(0.0), 0.0);
        assert!(told(f64::MIN_POSITIVE / 8.0) <= f64::MIN_POSITIVE);
        assert!(told(f64::MAX) > 1e307 && told(f64::MAX).is_finite(), "the rest is owed");
    }
}
