//! A number in two bytes: the upper half of a 32-bit float, with its sign, its range and 8 bits of precision.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A number to two or three digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Rough(u16);

impl Rough {
    /// The nearest one; of two, the even one.
    pub(crate) fn of(value: f64) -> Self {
        let bits = (value as f32).to_bits();
        Self((bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    pub(crate) fn value(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.0) << 16))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_value_to_a_256th(value in -1e30f64..1e30, smaller in 0i32..200) {
            let value = value / 2f64.powi(smaller);
            let rough = Rough::of(value).value();
            prop_assume!(value.abs() > 1e-37);
            prop_assert!((rough - value).abs() <= value.abs() / 256.0, "{value:e} became {rough:e}");
            prop_assert_eq!(Rough::of(rough).value(), rough);
        }
    }

    #[test]
    fn what_is_too_small_is_nothing() {
        assert_eq!(Rough::of(0.0).value(), 0.0);
        assert_eq!(Rough::of(1e-60).value(), 0.0);
        assert_eq!(Rough::of(1.0).value(), 1.0);
        assert_eq!(Rough::of(-1.0 - 1.0 / 256.0).value(), -1.0);
        assert_eq!(Rough::of(-1.0 - 3.0 / 256.0).value(), -1.0 - 4.0 / 256.0);
    }
}
