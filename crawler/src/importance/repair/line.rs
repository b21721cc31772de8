//! Further along the way that sweeps go.
//!
//! Where sweeps make a residual less by the same small part each time, they go in nearly the same direction, only not far enough. The
//! residual of a point on the line through two vectors is the same mixture of their residuals, so it costs no look at a link to find where
//! on that line it is least, and to go there. As with conjugate gradients, what the last way gained is not to be lost on the next one:
//! the next way is made such that their images stay at right angles (this is GCR that remembers one direction, with sweeps to precondition).
//!
//! ```text
//!   begin ── sweep ─ sweep ─ sweep ──▶ ┄┄┄┄┄┄┄▶ the next begin
//! ```

/// Sweeps from one place to the next.
const SWEEPS: u32 = 3;
/// Pages count by what they have; those with less than this part of the mean as if they had that.
const FLOOR: f64 = 1e-2;
/// A way that is all the last one but for this part says nothing.
const NEW_MIN: f64 = 1e-8;

/// Where the way began, and where the last one went. What they take is kept from one repair to the next: memory that is new to the process costs as much as two sweeps.
#[derive(Debug, Clone)]
pub(super) struct Line {
    sweeps: u32,
    begun: bool,
    begin: Begin,
    has_last: bool,
    last: Way,
    rounding: f64,
}

#[derive(Debug, Clone)]
struct Begin {
    values: Vec<f64>,
    residual: Vec<f64>,
}

/// A direction v, and its image (λ − c·M)·v.
#[derive(Debug, Clone)]
struct Way {
    values: Vec<f64>,
    image: Vec<f64>,
}

impl Line {
    pub(super) fn new(pages: usize) -> Line {
        let none = || vec![0.0; pages];
        let (begin, last) =
            (Begin { values: none(), residual: none() }, Way { values: none(), image: none() });
        Line { sweeps: 0, begun: false, begin, has_last: false, last, rounding: 0.0 }
    }

    /// A sweep has been made; every few of them values and residual go on along the line. Says whether they did.
    pub(super) fn swept(&mut self, values: &mut [f64], residual: &mut [f64]) -> bool {
        self.sweeps += 1;
        if self.sweeps < SWEEPS {
            return false;
        }
        self.sweeps = 0;
        if !self.begun {
            // What a few sweeps settle needs no line.
            self.begin_at(values, residual);
            return false;
        }
        if !self.has_last {
            for way in [&mut self.last.values, &mut self.last.image] {
                way.clear();
                way.resize(values.len(), 0.0);
            }
        }
        let far = self.begin.go_on(values, residual, &mut self.last);
        self.has_last = far.is_some();
        if far.is_none() {
            self.begin_at(values, residual);
        }
        // A difference of values is as exact as the values are; the residual is kept as if it were exact.
        self.rounding += (1.0 + far.unwrap_or(0.0).abs()) * f64::EPSILON;
        far.is_some()
    }

    /// λ is larger by `change`, and values and residual are others.
    pub(super) fn corrected(&mut self, change: f64, values: &[f64], residual: &[f64]) {
        if !self.begun {
            return;
        }
        self.begin_at(values, residual);
        self.sweeps = 0;
        if self.has_last {
            let way = self.last.image.iter_mut().zip(&self.last.values);
            way.for_each(|(image, along)| *image += change * along);
        }
    }

    /// What comes is not on a line with what was.
    pub(super) fn forget(&mut self) {
        (self.sweeps, self.begun, self.has_last) = (0, false, false);
    }

    /// Another repair begins, or another residual.
    pub(super) fn start(&mut self) {
        self.forget();
        self.rounding = 0.0;
    }

    /// What rounding may have put between the residual and what it is taken for, of values that add up to 1.
    pub(super) fn rounding(&self) -> f64 {
        self.rounding
    }

    fn begin_at(&mut self, values: &[f64], residual: &[f64]) {
        self.begun = true;
        self.begin.values.clear();
        self.begin.values.extend_from_slice(values);
        self.begin.residual.clear();
        self.begin.residual.extend_from_slice(residual);
    }
}

impl Begin {
    /// Goes to where the residual is least; says how far that is, as a multiple of the way that sweeps went, or that this way says nothing new.
    fn go_on(&mut self, values: &mut [f64], residual: &mut [f64], last: &mut Way) -> Option<f64> {
        let floor = FLOOR / values.len().max(1) as f64;
        let (mut length, mut length_of_last, mut with_last) = (0.0, 0.0, 0.0);
        let (mut along, mut along_last) = (0.0, 0.0);
        let places = self.residual.iter().zip(&*residual).zip(&last.image).zip(&self.values);
        for (((before, now), last), value) in places {
            let (image, weight) = (before - now, 1.0 / (value.max(0.0) + floor));
            length += image * image * weight;
            length_of_last += last * last * weight;
            with_last += image * last * weight;
            along += image * before * weight;
            along_last += last * before * weight;
        }
        // How much of the last way is in this one, and how far it is without that.
        let of_last = if length_of_last > 0.0 { with_last / length_of_last } else { 0.0 };
        let new_length = length - of_last * with_last;
        let far = (along - of_last * along_last) / new_length;
        if !far.is_finite() || new_length <= NEW_MIN * length {
            return None;
        }
        let values = values.iter_mut().zip(&mut self.values).zip(&mut last.values);
        for ((now, before), way) in values {
            *way = *now - *before - of_last * *way;
            *before += far * *way;
            *now = *before;
        }
        let residuals = residual.iter_mut().zip(&mut self.residual).zip(&mut last.image);
        for ((now, before), image) in residuals {
            *image = *before - *now - of_last * *image;
            *before -= far * *image;
            *now = *before;
        }
        Some(far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Residuals that every sweep makes smaller by the same part, of two kinds, fade far faster along the line; what is missing is the residual
    /// all the way, when λ is another in between, too.
    #[test]
    fn what_fades_at_two_rates_fades_faster() {
        let rates = [0.9, 0.9, 0.7, 0.7, 0.9];
        let expected = [0.3, 0.1, 0.2, 0.25, 0.15];
        let sweep = |values: &mut [f64], residual: &mut [f64], image: f64| {
            for ((value, left), rate) in values.iter_mut().zip(residual).zip(rates) {
                *value += *left * (1.0 - rate) / image;
                *left *= rate;
            }
        };
        for change in [0.0, 0.125] {
            // The image of a vector is so many times the vector.
            let mut image = 1.0;
            let mut values = vec![0.2; 5];
            let left = |image: f64, values: &[f64]| -> Vec<f64> {
                expected.iter().zip(values).map(|(expected, value)| expected - image * value).collect()
            };
            let mut residual = left(image, &values);
            let (mut alone, mut line) = (residual.clone(), Line::new(5));
            for n in 0..4 * SWEEPS {
                if n == 2 * SWEEPS {
                    image += change;
                    residual = left(image, &values);
                    line.corrected(change, &values, &residual);
                }
                sweep(&mut values, &mut residual, image);
                line.swept(&mut values, &mut residual);
                sweep(&mut [0.0; 5], &mut alone, 1.0);
            }
            for (kept, left) in residual.iter().zip(left(image, &values)) {
                assert!((kept - left).abs() < 1e-12, "the residual is no longer what is missing");
            }
            let sum = |all: &[f64]| all.iter().map(|left| left.abs()).sum::<f64>();
            assert!(sum(&residual) < 0.1 * sum(&alone), "{change}: {residual:?} against {alone:?}");
        }
    }
}
