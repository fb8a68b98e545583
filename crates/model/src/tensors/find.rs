//! Finds tensors in a catalog and checks their shapes and types. A tensor of the file that is never requested is an error.
//!
//! Shapes are innermost first, as GGUF writes them: a matrix of `[rows, cols]` is `[cols, rows]`.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use alight_formats::gguf::TensorInfo;
use alight_formats::split::{Catalog, Placed};
use alight_kernels::dequant::dequantize_row;
use alight_kernels::tiles::TILE_ROWS;
use alight_kernels::{Layout, WeightType, planes};
use alight_pages::Map;

use super::matrix::Stride;
use super::{Linear, MatrixRef, WeightError};
use crate::norm::NormSpec;
use crate::norm::{Norm, NormKind, OUTPUT_NORM};

/// Tensors that nothing here is computed with: heads for training (BERT's pooler without a classifier, its masked words), and what other
/// programs keep beside those that are.
const OTHER_HEADS: [&str; 4] = ["cls.", "dense_", "pooler.", "mlm."];

/// Suffix of the factor on the products of a matrix `NAME.weight`: one number, or one for each expert.
const SCALE: &str = ".scale";

/// Suffix of the scale with which other programs round the activations of a matrix; here they are not rounded with it.
const INPUT_SCALE: &str = ".input_scale";

/// Looks up tensors by name, checks their shape and type, and remembers which ones were requested.
pub(crate) struct Finder<'c, 'a> {
    pub(crate) catalog: &'c Catalog<'a>,
    pub(crate) maps: &'c [&'c Map],
    /// The properties shared by all norms.
    pub(crate) norms: NormSpec,
    /// The beginning of the names of layers' tensors, before the number: `blk`, mostly.
    pub(crate) layers: &'static str,
    /// The tensors that were requested.
    pub(crate) found: RefCell<HashSet<*const Placed<'a>>>,
    /// Data of any type that parts of several layers share.
    pub(crate) shared: RefCell<Vec<Arc<dyn Any + Send + Sync>>>,
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
        let matrix = self.matrix_of(name, &[cols, rows])?;
        Ok(MatrixRef { scales: self.scales(name, 1)?, ..matrix })
    }

    /// The factors on the products of the matrix `name`, or of each of its experts; empty if the file has none.
    pub(crate) fn scales(&self, name: &str, count: usize) -> Result<Box<[f32]>, WeightError> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        Ok(self.optional(&format!("{stem}{SCALE}"), count)?.unwrap_or_default().into())
    }

    /// A matrix of this shape, or several contiguous ones. Their products are not scaled.
    pub(crate) fn matrix_of(&self, name: &str, shape: &[usize]) -> Result<MatrixRef, WeightError> {
        let matrix = self.matrices_of(name, shape)?;
        match matrix.stride {
            None => Ok(matrix),
            Some(_) => Err(WeightError::SideBySide { name: name.into() }),
        }
    }

    /// A matrix of this shape, or several, which need not be contiguous if they are experts.
    fn matrices_of(&self, name: &str, shape: &[usize]) -> Result<MatrixRef, WeightError> {
        let (shard, info) = self.tensor(name, shape)?;
        let (cols, rows) = (shape[0], shape[1..].iter().product());
        let ty = WeightType::of(info.ty).ok_or_else(|| WeightError::Type {
            name: name.into(),
            found: info.ty.name(),
            expected: format!("one of {}", WeightType::ALL.map(|ty| ty.to_string()).join(", ")),
        })?;
        let layout = Layout::from(info.packed);
        // Other matrices are read by some of their rows or columns.
        let is_output = ["output.weight", "token_embd.weight"].contains(&name);
        if layout == Layout::Planes && (!is_output || !planes::has_planes_for(ty, rows, cols)) {
            return Err(WeightError::Planes { name: name.into(), cols });
        }
        let bytes = info.range();
        // Both are less than the bytes of the file, which is mapped.
        let stride =
            info.stride.map(|bytes| Stride { bytes: bytes as usize, experts: info.ne[2] as usize });
        Ok(MatrixRef { stride, ..MatrixRef::mapped(shard, bytes, layout, ty, [cols, rows]) })
    }

    /// Contiguous matrices `[cols, rows, count]`, all of which a token reads.
    pub(crate) fn matrices(
        &self,
        name: &str,
        [cols, rows, count]: [usize; 3],
    ) -> Result<MatrixRef, WeightError> {
        let all = self.matrix_of(name, &[cols, rows, count])?;
        Ok(MatrixRef { rows, count, used: count, ..all })
    }

    /// As [`Finder::matrix`], with a row per token, which is read unscaled.
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
        self.matrix_of(name, &[cols, tokens])
    }

    /// A vector of finite numbers, copied as f32.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightError> {
        self.floats(name, &[len])
    }

    /// Finite numbers of this shape, copied as f32.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let (shard, info) = self.tensor(name, shape)?;
        let len = shape.iter().product();
        let ty = WeightType::of(info.ty).filter(|ty| ty.is_float());
        let ty = ty.ok_or_else(|| WeightError::Type {
            name: name.into(),
            found: info.ty.name(),
            expected: "F32, F16 or BF16".into(),
        })?;
        let mut out = vec![0.0; len];
        // Read, not mapped: a fault would also read the surroundings of each of a hundred vectors, in a file that may not be in
        // the page cache. If the read fails, the map reports the reason.
        let (map, range) = (&self.maps[shard], info.range());
        // If they will not be received, the map reports that as well.
        let _ = map.wait(&range, &|| false);
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

    /// The norm of rows of `len` elements with the weights `what.weight`, and with the bias `what.bias` if the norm can have one
    /// and the file has it.
    pub(crate) fn norm(&self, what: &str, len: usize) -> Result<Norm, WeightError> {
        let bias = match self.norms.kind {
            NormKind::Rms => None,
            NormKind::Layer => self.optional(&format!("{what}.bias"), len)?,
            NormKind::Unweighted => {
                return Ok(Norm { spec: self.norms, weight: vec![1.0; len], bias: None });
            }
        };
        let name = format!("{what}.weight");
        // Some files leave the suffix out (Falcon-H1).
        let weight = match self.catalog.get(&name).is_none() && self.catalog.get(what).is_some() {
            true => self.vector(what, len)?,
            false => self.vector(&name, len)?,
        };
        Ok(Norm { spec: self.norms, weight, bias })
    }

    /// A norm of rows of `len` elements without weights.
    pub(crate) fn unweighted_norm(&self, len: usize) -> Norm {
        let spec = NormSpec { kind: NormKind::Rms, eps: self.norms.eps };
        Norm { spec, weight: vec![1.0; len], bias: None }
    }

    /// Checks that every tensor of the file was requested, except for those of layers that predict further tokens.
    pub(crate) fn all_found(
        &self,
        architecture: &'static str,
        layers: usize,
        draft_layers: usize,
    ) -> Result<(), WeightError> {
        let found = self.found.borrow();
        let drafts = layers..layers + draft_layers;
        let stray = |placed: &&Placed<'_>| {
            let name = placed.info.name;
            let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            let block = block.and_then(|number| number.parse::<usize>().ok());
            let other = OTHER_HEADS.iter().any(|head| name.starts_with(head))
                || name.ends_with(INPUT_SCALE)
                || block.is_some_and(|block| drafts.contains(&block));
            !other && !found.contains(&std::ptr::from_ref(*placed).cast())
        };
        match self.catalog.tensors.iter().find(stray) {
            None => Ok(()),
            Some(placed) => Err(WeightError::Stray { name: placed.info.name.into(), architecture }),
        }
    }

    /// As [`Finder::vector`], for an optional tensor.
    pub(crate) fn optional(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        match self.catalog.get(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }
}

/// [`Finder`] for the tensors of one layer, by their names within it.
pub(crate) struct LayerFinder<'f, 'c, 'a> {
    pub(crate) all: &'f Finder<'c, 'a>,
    pub(crate) layer: usize,
}

impl LayerFinder<'_, '_, '_> {
    fn name(&self, what: &str) -> String {
        format!("{}.{}.{what}", self.all.layers, self.layer)
    }

    /// The tensors of the first layer.
    pub(crate) fn first_layer(&self) -> Self {
        LayerFinder { all: self.all, layer: 0 }
    }

    /// The number of rows of a tensor, if the file has it.
    pub(crate) fn rows(&self, what: &str) -> Option<usize> {
        let info = self.all.catalog.get(&self.name(what))?.info;
        usize::try_from(info.ne[1]).ok()
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

    /// The projection `[rows, cols]` called `what`, with its bias if the file has one.
    pub(crate) fn linear(
        &self,
        what: &str,
        cols: usize,
        rows: usize,
    ) -> Result<Linear, WeightError> {
        Ok(Linear::from(self.matrix(what, cols, rows)?).with_bias(self.bias(what, rows)?))
    }

    /// As [`LayerFinder::linear`], for a router. Its products are not scaled: the tensor with that name scales its input.
    pub(crate) fn router(
        &self,
        what: &str,
        cols: usize,
        rows: usize,
    ) -> Result<Linear, WeightError> {
        let matrix = self.all.matrix_of(&self.name(&format!("{what}.weight")), &[cols, rows])?;
        Ok(Linear::from(matrix).with_bias(self.bias(what, rows)?))
    }

    /// True if the layer has a tensor `what.weight`.
    pub(crate) fn has(&self, what: &str) -> bool {
        self.all.catalog.get(&self.name(&format!("{what}.weight"))).is_some()
    }

    /// Returns true if the file has a matrix `what.weight` with this number of rows.
    pub(crate) fn has_rows(&self, what: &str, rows: usize) -> bool {
        let found = self.all.catalog.get(&self.name(&format!("{what}.weight")));
        found.is_some_and(|tensor| tensor.info.shape().get(1) == Some(&(rows as u64)))
    }

    /// Rows `rows` of the matrix `what.weight`, which maps `cols` features to `all`.
    pub(crate) fn rows_of(
        &self,
        what: &str,
        [cols, all]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<MatrixRef, WeightError> {
        let matrix = self.matrix(what, cols, all)?;
        let whole = |row: usize| matrix.layout == Layout::Rows || row.is_multiple_of(TILE_ROWS);
        if !whole(rows.start) || !whole(rows.end) {
            let name = self.name(&format!("{what}.weight"));
            let expected = format!("a part of whole tiles of {TILE_ROWS} rows");
            return Err(WeightError::Shape { name, found: format!("rows {rows:?}"), expected });
        }
        let row = matrix.bytes.len() / all;
        let bytes = matrix.bytes.start + rows.start * row..matrix.bytes.start + rows.end * row;
        Ok(MatrixRef { bytes, rows: rows.len(), ..matrix })
    }

    /// The vector with this full name within the layer.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightError> {
        self.all.vector(&self.name(name), len)
    }

    /// The experts' matrices `what.weight` `[cols, rows, experts]`, in which every second row belongs to the same matrix. A token
    /// reads those of `used` experts.
    pub(crate) fn interleaved(
        &self,
        what: &str,
        shape: [usize; 3],
        used: usize,
    ) -> Result<MatrixRef, WeightError> {
        let all = self.experts(what, shape, 1, used)?;
        if all.layout == Layout::Tiles {
            let name = self.name(&format!("{what}.weight"));
            let (found, expected) =
                ("tiles".into(), "rows, of which every second one is a gate".into());
            return Err(WeightError::Shape { name, found, expected });
        }
        Ok(MatrixRef { stays_rows: true, ..all })
    }

    /// The experts' matrices `what.weight` `[cols, rows, experts]`, each of which is `parts` matrices with an equal number of
    /// rows. A token reads those of `used` experts.
    pub(crate) fn experts(
        &self,
        what: &str,
        [cols, rows, experts]: [usize; 3],
        parts: usize,
        used: usize,
    ) -> Result<MatrixRef, WeightError> {
        let name = self.name(&format!("{what}.weight"));
        let all = self.all.matrices_of(&name, &[cols, rows, experts])?;
        // The matrices of heads, all of which a token reads, may be viewed as one contiguous matrix.
        if all.stride.is_some() && !what.ends_with("_exps") {
            return Err(WeightError::SideBySide { name });
        }
        let rows = rows / parts;
        if all.layout == Layout::Tiles && !rows.is_multiple_of(TILE_ROWS) {
            let expected = format!("{parts} matrices of whole tiles of {TILE_ROWS} rows each");
            return Err(WeightError::Shape { name, found: format!("{rows} rows each"), expected });
        }
        let scales = self.all.scales(&name, experts)?;
        Ok(MatrixRef { rows, count: parts * experts, used: parts * used, scales, ..all })
    }

    /// The contiguous matrices `what.weight` `[cols, rows]` of `count` heads, each of which is a matrix of `first` rows and one
    /// of the other rows. They stay rows. Their products are not scaled.
    pub(crate) fn parts_of_rows(
        &self,
        what: &str,
        [cols, rows]: [usize; 2],
        [first, count]: [usize; 2],
    ) -> Result<MatrixRef, WeightError> {
        let name = self.name(&format!("{what}.weight"));
        let all = self.all.matrix_of(&name, &[cols, count * rows])?;
        let whole = [rows, first].iter().all(|rows| rows.is_multiple_of(TILE_ROWS));
        if all.layout == Layout::Tiles && !whole {
            let expected = format!("{count} heads of whole tiles of {TILE_ROWS} rows");
            return Err(WeightError::Shape { name, found: format!("{rows} rows each"), expected });
        }
        Ok(MatrixRef { rows, count, used: count, stays_rows: true, ..all })
    }

    /// The experts' biases `what.bias` `[len, experts]`, if the file has them: a row of F32 for each.
    pub(crate) fn experts_bias(
        &self,
        what: &str,
        len: usize,
        experts: usize,
        used: usize,
    ) -> Result<Option<MatrixRef>, WeightError> {
        let name = self.name(&format!("{what}.bias"));
        if self.all.catalog.get(&name).is_none() {
            return Ok(None);
        }
        let all = self.all.matrix_of(&name, &[len, experts])?;
        if all.ty != WeightType::F32 {
            let found = all.ty.ggml().name();
            return Err(WeightError::Type { name, found, expected: "F32".into() });
        }
        Ok(Some(MatrixRef { rows: 1, count: experts, used, ..all }))
    }

    /// Marks the tensor with this full name within the layer as unused, if there is one.
    pub(crate) fn ignore(&self, what: &str) {
        if let Some(placed) = self.all.catalog.get(&self.name(what)) {
            self.all.found.borrow_mut().insert(placed);
        }
    }

    /// The vector with this full name within the layer, if the file has it.
    pub(crate) fn optional(&self, what: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        self.all.optional(&self.name(what), len)
    }

    /// Checks that experts are not one tensor each, as in files from before April 2024.
    ///
    /// # Errors
    /// They are.
    pub(crate) fn not_one_by_one(&self) -> Result<(), WeightError> {
        let name = self.name("ffn_gate.0.weight");
        match self.all.catalog.get(&name) {
            None => Ok(()),
            Some(_) => Err(WeightError::OneByOne { name }),
        }
    }

    /// The norm `what` of rows of `len` elements.
    pub(crate) fn norm(&self, what: &str, len: usize) -> Result<Norm, WeightError> {
        match what {
            OUTPUT_NORM => self.all.norm(what, len),
            _ => self.all.norm(&self.name(what), len),
        }
    }

    /// A norm of rows of `len` elements without weights.
    pub(crate) fn unweighted_norm(&self, len: usize) -> Norm {
        self.all.unweighted_norm(len)
    }

    /// The norms `what` of rows of `len` elements, each with its own weights: `[len, count]`.
    pub(crate) fn norms(
        &self,
        what: &str,
        [len, count]: [usize; 2],
    ) -> Result<Vec<Norm>, WeightError> {
        let weights = self.table(&format!("{what}.weight"), [len, count])?;
        let spec = self.all.norms;
        let norm = |weight: &[f32]| Norm { spec, weight: weight.to_vec(), bias: None };
        Ok(weights.chunks_exact(len).map(norm).collect())
    }

    /// The `len` numbers of the tensor with this full name within the layer, whatever its shape.
    pub(crate) fn numbers(&self, what: &str, len: usize) -> Result<Vec<f32>, WeightError> {
        let name = self.name(what);
        let ne = self.all.catalog.get(&name).map_or([len as u64, 1, 1, 1], |placed| placed.info.ne);
        let alike = ne.iter().product::<u64>() == len as u64;
        let shape = if alike { ne.map(|n| n as usize) } else { [len, 1, 1, 1] };
        self.all.floats(&name, &shape)
    }

    /// A small table `[rows, cols]` with this full name within the layer, copied as f32.
    pub(crate) fn table(
        &self,
        what: &str,
        [cols, rows]: [usize; 2],
    ) -> Result<Vec<f32>, WeightError> {
        self.all.floats(&self.name(what), &[cols, rows])
    }

    /// The bias `what.bias`, if the file has it.
    pub(crate) fn bias(&self, what: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        self.all.optional(&self.name(&format!("{what}.bias")), len)
    }
}
