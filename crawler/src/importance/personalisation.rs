//! E: where importance comes from, apart from links.

use super::ImportanceError;

/// A share a page, adding up to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Personalisation {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Uniform(usize),
    Given(Vec<f64>),
}

impl Personalisation {
    /// The same share for each of `pages` pages.
    #[must_use]
    pub fn uniform(pages: usize) -> Self {
        Self { kind: Kind::Uniform(pages) }
    }

    /// Shares in the proportion of `weights`.
    ///
    /// # Errors
    /// When a weight is negative or no finite number, or they add up to nothing.
    pub fn new(weights: &[f64]) -> Result<Self, ImportanceError> {
        Ok(Self { kind: Kind::Given(normalised("personalisation", weights, weights.len())?) })
    }

    /// How many pages it speaks of.
    #[must_use]
    pub fn pages(&self) -> usize {
        match &self.kind {
            Kind::Uniform(pages) => *pages,
            Kind::Given(shares) => shares.len(),
        }
    }

    /// The share of `page`; 0 beyond the last.
    #[must_use]
    pub fn share(&self, page: usize) -> f64 {
        match &self.kind {
            Kind::Uniform(pages) if page < *pages => 1.0 / *pages as f64,
            Kind::Uniform(_) => 0.0,
            Kind::Given(shares) => shares.get(page).copied().unwrap_or(0.0),
        }
    }

    /// The share of every page, where all have the same.
    pub(super) fn alike(&self) -> Option<f64> {
        match &self.kind {
            Kind::Uniform(pages) => Some(1.0 / *pages as f64),
            Kind::Given(_) => None,
        }
    }

    /// All shares.
    #[must_use]
    pub fn to_vec(&self) -> Vec<f64> {
        match &self.kind {
            Kind::Uniform(pages) => vec![1.0 / *pages as f64; *pages],
            Kind::Given(shares) => shares.clone(),
        }
    }

    /// Speaks of more pages: uniform as before, or with nothing for the new ones. Says what the old shares were multiplied by.
    pub(super) fn grow(&mut self, pages: usize) -> f64 {
        match &mut self.kind {
            Kind::Uniform(known) => {
                let by = *known as f64 / pages as f64;
                *known = pages;
                by
            }
            Kind::Given(shares) => {
                shares.resize(pages, 0.0);
                1.0
            }
        }
    }

    pub(super) fn check_len(&self, pages: usize) -> Result<(), ImportanceError> {
        check_len("personalisation", self.pages(), pages)
    }
}

pub(super) fn check_len(name: &'static str, found: usize, expected: usize) -> Result<(), ImportanceError> {
    if found == expected { Ok(()) } else { Err(ImportanceError::Length { name, expected, found }) }
}

/// `values` scaled to add up to 1, if they are finite, not negative, and as many as there are pages.
pub(super) fn normalised(
    name: &'static str,
    values: &[f64],
    pages: usize,
) -> Result<Vec<f64>, ImportanceError> {
    check_len(name, values.len(), pages)?;
    check_values(name, values)?;
    let sum: f64 = values.iter().sum();
    if pages > 0 && !(sum > 0.0 && sum.is_finite()) {
        return Err(ImportanceError::Sum { name, found: sum });
    }
    // A tiny sum: dividing is exact where multiplying by its inverse would overflow.
    Ok(values.iter().map(|value| value / sum).collect())
}

pub(super) fn check_values(name: &'static str, values: &[f64]) -> Result<(), ImportanceError> {
    match values.iter().position(|value| !(*value >= 0.0 && value.is_finite())) {
        None => Ok(()),
        Some(page) => {
            Err(ImportanceError::Value { name, page, found: values.get(page).copied().unwrap_or(f64::NAN) })
        }
    }
}
