//! The head: it makes pooled states vectors of another length, or scores.

use std::iter::once;

use crate::keys::MAX_WIDTH;
use crate::norm::Norm;
use crate::spec::pooling::MAX_LABELS;
use crate::spec::{ClassifierSpec, HeadActivation, ModelSpec};
use crate::tensors::{Finder, Linear, MatrixRef, WeightError};

/// The projections that follow pooling, and the classifier; all of them may be missing.
#[derive(Debug, Default)]
pub(crate) struct HeadWeights {
    /// One after the other, for vectors: `[embedding_size, …]`, …, `[…, hidden]`
    pub(crate) projections: Vec<Linear>,
    /// For scores.
    pub(crate) classifier: Option<Classifier>,
}

/// `last(norm(activation(first(x))))`, or `last(x)`.
#[derive(Debug)]
pub(crate) struct Classifier {
    /// `[width, hidden]`
    pub(crate) first: Option<Linear>,
    pub(crate) activation: HeadActivation,
    /// `[width]`
    pub(crate) norm: Option<Norm>,
    /// `[labels, width]`
    pub(crate) last: Linear,
}

/// Returns the rows of the matrix `name`, if the file has it.
fn rows_of(find: &Finder<'_, '_>, name: &str, most: usize) -> Result<Option<usize>, WeightError> {
    let Some(placed) = find.catalog.get(name) else { return Ok(None) };
    match usize::try_from(placed.info.ne[1]) {
        Ok(rows) if rows <= most => Ok(Some(rows)),
        _ => Err(WeightError::Shape {
            name: name.into(),
            found: format!("{:?}", placed.info.shape()),
            expected: format!("at most {most} rows"),
        }),
    }
}

/// Finds the projection `NAME.weight` of `cols` columns with its bias, if the file has it.
fn linear(
    find: &Finder<'_, '_>,
    name: &str,
    cols: usize,
    most: usize,
) -> Result<Option<Linear>, WeightError> {
    let weight = format!("{name}.weight");
    let Some(rows) = rows_of(find, &weight, most)? else { return Ok(None) };
    let bias = find.optional(&format!("{name}.bias"), rows)?;
    Ok(Some(Linear::from(find.matrix(&weight, cols, rows)?).with_bias(bias)))
}

impl HeadWeights {
    /// Finds what the file has, and completes the description with it.
    ///
    /// # Errors
    /// A tensor of the wrong shape or type.
    pub(super) fn find(
        find: &Finder<'_, '_>,
        spec: &mut ModelSpec,
    ) -> Result<HeadWeights, WeightError> {
        let hidden = spec.hidden_size;
        let (mut projections, mut width) = (Vec::new(), hidden);
        for name in spec.projections {
            if let Some(projection) = linear(find, name, width, MAX_WIDTH)? {
                width = projection.rows();
                projections.push(projection);
            }
        }
        spec.embedding_size = width;
        let Some(found) = spec.classifier.take() else {
            return Ok(HeadWeights { projections, classifier: None });
        };
        let classifier = Classifier::find(find, found.activation, hidden)?;
        spec.classifier = classifier.as_ref().map(|classifier| {
            let labels = classifier.last.rows();
            let names = if found.names.len() == labels { found.names } else { Vec::new() };
            ClassifierSpec { labels, names, ..found }
        });
        Ok(HeadWeights { projections, classifier })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let classifier = self.classifier.iter();
        let classifier = classifier.flat_map(|c| c.first.iter().chain(once(&c.last)));
        self.projections.iter().chain(classifier)
    }

    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        self.linears().map(|linear| &linear.matrix)
    }

    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixRef> {
        let classifier = self.classifier.iter_mut();
        let classifier = classifier.flat_map(|c| c.first.iter_mut().chain(once(&mut c.last)));
        self.projections.iter_mut().chain(classifier).map(|linear| &mut linear.matrix)
    }

    /// Returns the length of its longest input.
    pub(crate) fn widest_input(&self) -> usize {
        self.linears().map(Linear::cols).max().unwrap_or(0)
    }
}

impl Classifier {
    fn find(
        find: &Finder<'_, '_>,
        activation: HeadActivation,
        hidden: usize,
    ) -> Result<Option<Classifier>, WeightError> {
        if find.catalog.get("cls.output.weight").is_none() {
            // The only matrix is the last one.
            let last = linear(find, "cls", hidden, MAX_LABELS)?;
            return Ok(last.map(|last| Classifier { first: None, activation, norm: None, last }));
        }
        let first = linear(find, "cls", hidden, MAX_WIDTH)?;
        let width = first.as_ref().map_or(hidden, Linear::rows);
        let has_norm = first.is_some() && find.catalog.get("cls.norm.weight").is_some();
        let norm = has_norm.then(|| find.norm("cls.norm", width)).transpose()?;
        let last = linear(find, "cls.output", width, MAX_LABELS)?;
        Ok(last.map(|last| Classifier { first, activation, norm, last }))
    }
}
