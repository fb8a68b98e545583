//! Finding tensors in a catalog: each is checked for its shape and type, and a tensor of the file that nothing asks for is an error.
//!
//! Shapes are innermost first, as GGUF writes them: a matrix of `[rows, cols]` is `[cols, rows]`.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::unix::fs::FileExt;

use alight_formats::gguf::TensorInfo;
use alight_formats::split::{Catalog, Placed};
use alight_kernels::dequant::dequantize_row;
use alight_kernels::{Layout, WeightType};
use alight_pages::Map;

use super::{MatrixRef, WeightError};
use crate::load::Storage;

/// Tensors that are of no use for text: heads that classify it or make vectors of it.
const OTHER_HEADS: [&str; 2] = ["cls.", "dense_"];

/// Looks tensors up by name, checks their shape and type, and remembers which ones were asked for.
pub(crate) struct Finder<'c, 'a> {
    pub(super) catalog: &'c Catalog<'a>,
    pub(super) maps: &'c [&'c Map],
    /// The tensors that were asked for.
    pub(super) found: RefCell<HashSet<*const Placed<'a>>>,
}

impl Finder<'_, '_> {
    /// A tensor of exactly this shape. `shape` is innermost first.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<(usize, TensorInfo<'_>), WeightError> {
        let shown = || format!("{shape:?}");
        let Some(placed) = self.catalog.get(name) else {
            return Err(WeightError::Missing { name: name.into(), expected: shown() });
        };
        self.found.borrow_mut().insert(placed);
        let mut expected = [1u64; 4];
        for (e, &n) in expected.iter_mut().zip(shape) {
            *e = n as u64;
        }
        if placed.info.ne != expected {
            return Err(WeightError::Shape {
                name: name.into(),
                found: format!("{:?}", placed.info.shape()),
                expected: shown(),
            });
        }
        Ok((placed.shard, placed.info))
    }

    /// A matrix that maps `cols` features to `rows`.
    pub(crate) fn matrix(
        &self,
        name: &str,
        cols: usize,
        rows: usize,
    ) -> Result<MatrixRef, WeightError> {
        let (shard, info) = self.tensor(name, &[cols, rows])?;
        let ty = WeightType::of(info.ty).ok_or_else(|| WeightError::Type {
            name: name.into(),
            found: info.ty.name(),
            expected: format!("one of {}", WeightType::ALL.map(|ty| ty.to_string()).join(", ")),
        })?;
        let layout = if info.packed { Layout::Tiles } else { Layout::Rows };
        Ok(MatrixRef { shard, bytes: info.range(), storage: Storage::Map, layout, ty, rows, cols })
    }

    /// As [`Finder::matrix`], with a row per token.
    pub(crate) fn embedding(
        &self,
        name: &str,
        cols: usize,
        tokens: usize,
    ) -> Result<MatrixRef, WeightError> {
        if let Some(placed) = self.catalog.get(name) {
            let ne = placed.info.ne;
            if ne[0] == cols as u64 && ne[1] != tokens as u64 && ne[2] == 1 && ne[3] == 1 {
                return Err(WeightError::Vocabulary { name: name.into(), rows: ne[1], tokens });
            }
        }
        self.matrix(name, cols, tokens)
    }

    /// A vector of finite numbers, copied as f32.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightError> {
        let (shard, info) = self.tensor(name, &[len])?;
        let ty = WeightType::of(info.ty).filter(|ty| ty.is_float());
        let ty = ty.ok_or_else(|| WeightError::Type {
            name: name.into(),
            found: info.ty.name(),
            expected: "F32, F16 or BF16".into(),
        })?;
        let mut out = vec![0.0; len];
        // Read, not mapped: a fault would bring the neighbourhood in as well, of each of a hundred
        // vectors of a file that may not be in the page cache. Where that fails, the map says why.
        let (map, range) = (&self.maps[shard], info.range());
        let mut bytes = vec![0; range.len()];
        if map.file().read_exact_at(&mut bytes, range.start as u64).is_err() {
            bytes.copy_from_slice(&map.bytes()[range]);
        }
        dequantize_row(ty, &bytes, &mut out);
        if let Some(index) = out.iter().position(|v| !v.is_finite()) {
            let found = out[index];
            let expected = "a finite number";
            return Err(WeightError::Value { name: name.into(), index, found, expected });
        }
        Ok(out)
    }

    /// Whether every tensor of the file was asked for.
    pub(super) fn all_found(&self, architecture: &'static str) -> Result<(), WeightError> {
        let found = self.found.borrow();
        let stray = |placed: &&Placed<'_>| {
            let other = OTHER_HEADS.iter().any(|head| placed.info.name.starts_with(head));
            !other && !found.contains(&std::ptr::from_ref(*placed).cast())
        };
        match self.catalog.tensors.iter().find(stray) {
            None => Ok(()),
            Some(placed) => Err(WeightError::Stray { name: placed.info.name.into(), architecture }),
        }
    }

    /// As [`Finder::vector`], for a tensor that need not be there.
    pub(crate) fn optional(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        match self.catalog.get(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }
}

/// [`Finder`] for the tensors of one layer, by what they are called within it.
pub(crate) struct LayerFinder<'f, 'c, 'a> {
    pub(super) all: &'f Finder<'c, 'a>,
    pub(super) layer: usize,
}

impl LayerFinder<'_, '_, '_> {
    fn name(&self, what: &str) -> String {
        format!("blk.{}.{what}", self.layer)
    }

    /// The matrix `what.weight` that maps `cols` features to `rows`.
    pub(crate) fn matrix(
        &self,
        what: &str,
        cols: usize,
        rows: usize,
    ) -> Result<MatrixRef, WeightError> {
        self.all.matrix(&self.name(&format!("{what}.weight")), cols, rows)
    }

    /// The weights `what.weight` of a norm.
    pub(crate) fn norm(&self, what: &str, len: usize) -> Result<Vec<f32>, WeightError> {
        self.all.vector(&self.name(&format!("{what}.weight")), len)
    }

    /// The bias `what.bias`, if the file has it.
    pub(crate) fn bias(&self, what: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        self.all.optional(&self.name(&format!("{what}.bias")), len)
    }
}
