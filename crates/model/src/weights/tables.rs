//! Embeddings that are added to those of tokens: of their positions, and of their segments (which of the two texts of a pair they are in).

use alight_kernels::matmul::Matrix;
use alight_kernels::{Isa, vec};

use crate::norm::Norm;
use crate::spec::{EmbeddingNorm, ModelSpec};
use crate::store::Store;
use crate::tensors::{Finder, MatrixRef, WeightError};

/// The tables, and the norm of the sum.
#[derive(Debug)]
pub(crate) struct EmbeddingTables {
    /// `[positions, hidden]`
    positions: Option<MatrixRef>,
    /// `[segments, hidden]`
    segments: Option<MatrixRef>,
    /// `[hidden]`
    norm: Option<Norm>,
}

/// [`EmbeddingTables`] whose rows can be read.
pub(crate) struct TableViews<'m> {
    positions: Option<Matrix<'m>>,
    segments: Option<Matrix<'m>>,
    norm: Option<&'m Norm>,
}

impl EmbeddingTables {
    /// Finds the tables that `spec` names; `None` if it names none.
    ///
    /// # Errors
    /// A tensor is missing, or of the wrong shape or type.
    pub(super) fn find(
        find: &Finder<'_, '_>,
        spec: &ModelSpec,
    ) -> Result<Option<EmbeddingTables>, WeightError> {
        let hidden = spec.hidden_size;
        let table = |name, rows| find.matrix_of(name, &[hidden, rows]);
        let positions =
            spec.positions.map(|rows| table("position_embd.weight", rows)).transpose()?;
        let segments = Some(spec.segments).filter(|rows| *rows > 0);
        let segments = segments.map(|rows| table("token_types.weight", rows)).transpose()?;
        let norm = match spec.embedding_norm {
            EmbeddingNorm::None => None,
            EmbeddingNorm::Unweighted => Some(find.unweighted_norm(hidden)),
            EmbeddingNorm::Named(name) => Some(find.norm(name, hidden)?),
        };
        let found = positions.is_some() || segments.is_some() || norm.is_some();
        Ok(found.then_some(EmbeddingTables { positions, segments, norm }))
    }

    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        self.positions.iter().chain(&self.segments)
    }

    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixRef> {
        self.positions.iter_mut().chain(&mut self.segments)
    }

    /// Borrowed view. The caller must have waited for the section of the embedding.
    pub(crate) fn view<'m>(&'m self, store: &'m Store) -> TableViews<'m> {
        let view = |table: &'m Option<MatrixRef>| table.as_ref().map(|table| table.view(store));
        let [positions, segments] = [&self.positions, &self.segments].map(view);
        TableViews { positions, segments, norm: self.norm.as_ref() }
    }
}

impl TableViews<'_> {
    /// Adds to a row `x` `[hidden]` what its segment and its position add, and norms it. `row` `[hidden]` is scratch.
    pub(crate) fn add_to(
        &self,
        isa: Isa,
        [segment, position]: [usize; 2],
        x: &mut [f32],
        row: &mut [f32],
    ) {
        // A file with one segment has nothing that tells the second from it.
        if let Some(segments) = &self.segments {
            segments.dequantize_row(segment.min(segments.rows() - 1), row);
            vec::add_assign(isa, x, row);
        }
        if let Some(positions) = &self.positions {
            positions.dequantize_row(position, row);
            vec::add_assign(isa, x, row);
        }
        if let Some(norm) = self.norm {
            norm.apply(isa, x);
        }
    }
}
