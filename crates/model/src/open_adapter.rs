//! Opening an adapter for a model: everything in it is applied, or the adapter is refused by the name of what is not.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use alight_files::FilesError;
use alight_formats::adapter::{AdapterFile, JOINED, LowRankFactors, TensorChange, factor};
use alight_formats::gguf::TensorInfo;
use alight_kernels::dequant::dequantize_row;
use alight_kernels::low_rank::Numbers;
use alight_kernels::{Isa, WeightType, vec};
use alight_pages::{Map, Stamp};
use sha2::{Digest, Sha256};

use crate::adapters::{
    Adaptable, AdaptableRows, AdaptableTensor, Adapter, AdapterOpenError, Change, Floats,
    LowRankTerm, OtherMatrix, TableChange, TableTerm,
};
use crate::error::ModelError;
use crate::open::Model;
use crate::tensors::Linear;

/// The table of the embeddings of segments.
const SEGMENTS: &str = "token_types.weight";

impl Model {
    /// Opens an adapter for this model: a GGUF file that says `general.type = adapter`. Its factors stay in the file, which is mapped; nothing is read but
    /// once for its hash.
    ///
    /// # Errors
    /// The file is not an adapter, or not one for this model, or has something that would not be applied.
    pub fn open_adapter(&self, path: &Path) -> Result<Adapter, AdapterOpenError> {
        self.open_adapter_again(path, None)
    }

    /// As [`Model::open_adapter`], of a file that had a stamp and a hash when it was open before: while it has that stamp, it is not read for its hash.
    ///
    /// # Errors
    /// As [`Model::open_adapter`].
    pub fn open_adapter_again(
        &self,
        path: &Path,
        before: Option<&(Stamp, [u8; 32])>,
    ) -> Result<Adapter, AdapterOpenError> {
        let map = Arc::new(Map::open(path)?);
        let hash = match before {
            Some((stamp, hash)) if stamp == map.stamp() => *hash,
            _ => Sha256::digest(map.bytes()).into(),
        };
        map.check()?;
        let header = alight_files::copy(&map);
        let gguf = alight_files::parse(&map, &header)?;
        if alight_files::shards(&map, &gguf)?.is_some() {
            return Err(AdapterOpenError::Shards { path: path.into() });
        }
        let file = AdapterFile::read(&gguf)
            .map_err(|source| AdapterOpenError::File { path: path.into(), source })?;
        let expected = self.content().map_err(|error| of_model(error, path))?.architecture.clone();
        if file.architecture != expected {
            return Err(AdapterOpenError::Architecture {
                path: path.into(),
                found: file.architecture.into(),
                expected,
                model: self.name().into(),
            });
        }
        if file.invocation_tokens.is_some() {
            return Err(AdapterOpenError::Activated { path: path.into() });
        }
        let numbers = self.weights().linears().count();
        let mut changes: Vec<Vec<Change>> = (0..numbers).map(|_| Vec::new()).collect();
        let mut opened = Opened {
            model: self,
            map: &map,
            path,
            alpha: file.alpha,
            embedding: None,
            segments: None,
            converted: RefCell::default(),
        };
        for (name, change) in &file.changes {
            opened.apply(name, change, &mut changes)?;
        }
        // Additions to biases come after products.
        changes.iter_mut().for_each(|all| {
            all.sort_by_key(|change| matches!(change, Change::Delta { .. }));
        });
        let Opened { embedding, segments, .. } = opened;
        Ok(Adapter {
            hash,
            base: self.identity(),
            task_name: file.task_name.map(Into::into),
            prompt_prefix: file.prompt_prefix.map(Into::into),
            changes,
            embedding,
            segments,
            map: map.clone(),
        })
    }

    /// The tensors that adapters can change. They are looked up the first time only.
    fn adaptable(&self) -> Result<&Adaptable, ModelError> {
        if let Some(adaptable) = self.adaptable.get() {
            return Ok(adaptable);
        }
        let made = find_adaptable(self)?;
        Ok(self.adaptable.get_or_init(|| made))
    }
}

/// An error in reading the model's own files.
fn of_model(error: ModelError, path: &Path) -> AdapterOpenError {
    match error {
        ModelError::Map(error) => error.into(),
        ModelError::Files(error) => AdapterOpenError::Files(error),
        _ => AdapterOpenError::NotApplied {
            path: path.into(),
            name: String::new(),
            hint: ": the model's files cannot be read",
        },
    }
}

/// Finds the tensor that each projection of a model has its rows from.
fn find_adaptable(model: &Model) -> Result<Adaptable, FilesError> {
    let maps = model.store().maps();
    let copies = alight_files::copies(maps);
    let headers = alight_files::headers(maps, &copies)?;
    let mut places: Vec<(usize, &TensorInfo<'_>)> =
        headers.catalog.tensors.iter().map(|tensor| (tensor.shard, &tensor.info)).collect();
    places.sort_by_key(|(shard, info)| (*shard, info.offset));
    let mut tensors: HashMap<String, AdaptableTensor> = places
        .iter()
        .map(|(_, info)| {
            (info.name.to_owned(), AdaptableTensor { ne: info.ne, projections: Vec::new() })
        })
        .collect();
    for linear in model.weights().linears() {
        let (shard, bytes) = linear.matrix.file_range();
        let after = places
            .partition_point(|(other, info)| (*other, info.offset) <= (shard, bytes.start as u64));
        let Some((_, info)) = after.checked_sub(1).map(|at| places[at]) else { continue };
        let Some(rows) = rows_of(linear, info, bytes.start as u64 - info.offset) else { continue };
        // With a tied output, an adapter of the output concerns the output, and one of the embedding the embedding.
        let name = match info.name {
            "token_embd.weight" => "output.weight",
            name => name,
        };
        let tensor = tensors
            .entry(name.to_owned())
            .or_insert_with(|| AdaptableTensor { ne: info.ne, projections: Vec::new() });
        tensor.projections.push(rows);
    }
    Ok(Adaptable { tensors })
}

/// Returns the rows of a tensor that a projection has, which begins this number of bytes after it; `None` if it is not made of them.
fn rows_of(linear: &Linear, info: &TensorInfo<'_>, after: u64) -> Option<AdaptableRows> {
    let matrix = &linear.matrix;
    let [cols, all_rows, experts, _] = info.ne.map(|n| n as usize);
    let first = usize::try_from(after / info.row_bytes().max(1)).ok()?;
    let per_expert = matrix.count().checked_div(experts).filter(|n| *n > 0)?;
    let whole = matrix.count() == per_expert * experts
        && first + per_expert * matrix.rows() <= all_rows
        && (experts == 1 || per_expert * matrix.rows() == all_rows);
    (matrix.cols() == cols && whole).then_some(AdaptableRows {
        number: linear.number,
        first,
        rows: matrix.rows(),
        per_expert,
    })
}

/// An adapter that is being opened.
struct Opened<'a> {
    model: &'a Model,
    map: &'a Map,
    path: &'a Path,
    alpha: f32,
    embedding: Option<TableChange>,
    segments: Option<Box<[f32]>>,
    /// Tensors of other types, by their offsets: projections that have rows of one share it.
    converted: RefCell<HashMap<u64, Arc<[f32]>>>,
}

impl Opened<'_> {
    /// Adds a change to those of the projections that it is for.
    fn apply(
        &mut self,
        name: &str,
        change: &TensorChange<'_>,
        changes: &mut [Vec<Change>],
    ) -> Result<(), AdapterOpenError> {
        let refused =
            |hint| AdapterOpenError::NotApplied { path: self.path.into(), name: name.into(), hint };
        match change {
            TensorChange::Override(info) if LowRankFactors::is_embedding(name) => {
                let spec = self.model.spec();
                let expected = [spec.hidden_size as u64, spec.vocab as u64, 1, 1];
                if info.ne != expected {
                    return Err(self.wrong_shape(name, info.ne.into(), expected.into()));
                }
                self.embedding = Some(TableChange::Replace(self.floats(info)?));
                Ok(())
            }
            TensorChange::Override(info) if name.ends_with(".bias") => {
                self.other_bias(name, info, changes)
            }
            TensorChange::Override(info) => {
                let targets = self.targets(name)?;
                let expected = [targets.ne[0], targets.rows, targets.ne[2], targets.ne[3]];
                if info.ne != expected {
                    return Err(self.wrong_shape(name, info.ne.into(), expected.into()));
                }
                if info.ne[2] != 1 || targets.projections.iter().any(|rows| rows.per_expert != 1) {
                    return Err(refused(": a stack of matrices would be replaced"));
                }
                for rows in targets.projections {
                    let (values, cols) = (self.floats(info)?, info.ne[0] as usize);
                    let other = OtherMatrix { values, cols, first: rows.first };
                    changes[rows.number].push(Change::Replace(other));
                }
                Ok(())
            }
            TensorChange::Delta(info) => {
                let weight = name.strip_suffix(".bias").map(|stem| format!("{stem}.weight"));
                let weight =
                    weight.ok_or_else(|| refused(": it is not the bias of a projection"))?;
                let targets = self.targets(&weight)?;
                if targets.ne[2] != 1 || targets.rows != info.ne[0] {
                    return Err(self.wrong_shape(name, vec![info.ne[0]], vec![targets.rows]));
                }
                for rows in targets.projections {
                    let values = self.floats(info)?;
                    changes[rows.number].push(Change::Delta { values, first: rows.first });
                }
                Ok(())
            }
            TensorChange::LowRank(factors) if LowRankFactors::is_embedding(name) => {
                let spec = self.model.spec();
                let expected = [spec.hidden_size as u64, spec.vocab as u64];
                let found = factors.base_extents(name);
                if found != expected {
                    return Err(self.wrong_shape(name, found.into(), expected.into()));
                }
                self.embedding = Some(TableChange::LowRank(TableTerm {
                    a: self.floats(&factors.a)?,
                    b: self.floats(&factors.b)?,
                    rank: factors.rank as usize,
                    alpha: self.alpha,
                }));
                Ok(())
            }
            TensorChange::LowRank(factors) if name == SEGMENTS => {
                let spec = self.model.spec();
                let expected = [spec.hidden_size as u64, spec.segments as u64];
                let found = factors.base_extents(name);
                if found != expected {
                    return Err(self.wrong_shape(name, found.into(), expected.into()));
                }
                if factors.magnitude.is_some() || factors.bias.is_some() {
                    return Err(refused(": a table has no magnitudes and no bias"));
                }
                self.segments = Some(self.segments_of(factors, spec.hidden_size)?);
                Ok(())
            }
            TensorChange::LowRank(factors) => {
                let targets = self.targets(name)?;
                let [cols, rows] = factors.base_extents(name);
                let found = vec![cols, rows, factors.experts()];
                let expected = vec![targets.ne[0], targets.rows, targets.ne[2]];
                if found != expected {
                    return Err(self.wrong_shape(name, found, expected));
                }
                for rows in targets.projections {
                    let term = self.low_rank(factors, rows)?;
                    changes[rows.number].push(Change::LowRank(term));
                }
                Ok(())
            }
        }
    }

    /// The product of the factors of the table of segments, which has few rows: `[segments, hidden]`.
    fn segments_of(
        &self,
        factors: &LowRankFactors<'_>,
        hidden: usize,
    ) -> Result<Box<[f32]>, AdapterOpenError> {
        let values = |info: &TensorInfo<'_>| -> Result<Vec<f32>, AdapterOpenError> {
            let floats = self.floats(info)?;
            let numbers = floats.get(self.map);
            Ok((0..numbers.len()).map(|i| numbers.get(i)).collect())
        };
        let (a, b, rank) = (values(&factors.a)?, values(&factors.b)?, factors.rank as usize);
        let scale = factor(self.alpha, rank, 1.0);
        let mut segments = vec![0.0; b.len() / rank * hidden];
        for (row, b) in segments.chunks_exact_mut(hidden).zip(b.chunks_exact(rank)) {
            for (a, b) in a.chunks_exact(hidden).zip(b) {
                vec::add_times(Isa::best(), row, a, scale * b);
            }
        }
        Ok(segments.into())
    }

    /// Replaces a bias: adds what it is more than the base's.
    fn other_bias(
        &self,
        name: &str,
        info: &TensorInfo<'_>,
        changes: &mut [Vec<Change>],
    ) -> Result<(), AdapterOpenError> {
        let targets = self.targets(&name.replace(".bias", ".weight"))?;
        if targets.ne[2] != 1 || info.ne != [targets.rows, 1, 1, 1] {
            return Err(self.wrong_shape(name, info.ne.into(), vec![targets.rows]));
        }
        let other = self.floats(info)?;
        for rows in targets.projections {
            let linear = self.model.weights().linears().nth(rows.number);
            let bias = linear.and_then(|linear| linear.bias_values());
            let all = rows.rows * rows.per_expert;
            let other = other.get(self.map).range(rows.first..rows.first + all);
            let less = |i: usize| bias.map_or(0.0, |bias| bias[i]);
            let values = (0..all).map(|i| other.get(i) - less(i)).collect();
            changes[rows.number].push(Change::Delta { values: Floats::Own(values), first: 0 });
        }
        Ok(())
    }

    /// The projections that a tensor of this name would be the rows of.
    fn targets(&self, name: &str) -> Result<Targets, AdapterOpenError> {
        let adaptable = self.model.adaptable().map_err(|error| of_model(error, self.path))?;
        let Some(tensor) = adaptable.tensors.get(name) else {
            return self.joined(name, adaptable).ok_or_else(|| AdapterOpenError::Missing {
                path: self.path.into(),
                name: name.into(),
                model: self.model.name().into(),
            });
        };
        if tensor.projections.is_empty() {
            let (path, name) = (self.path.into(), name.into());
            return Err(AdapterOpenError::NotApplied { path, name, hint: "" });
        }
        let (ne, rows) = (tensor.ne, tensor.ne[1]);
        Ok(Targets { ne, rows, projections: tensor.projections.clone() })
    }

    /// The projections of a tensor whose rows are in another one, or in several others.
    fn joined(&self, name: &str, adaptable: &Adaptable) -> Option<Targets> {
        let (layer, what) = name.strip_suffix(".weight")?.rsplit_once('.')?;
        let tensor = |what: &str| adaptable.tensors.get(&format!("{layer}.{what}.weight"));
        for (whole, parts) in JOINED {
            if what == whole {
                let tensors: Option<Vec<_>> = parts.iter().map(|part| tensor(part)).collect();
                let tensors = tensors?;
                let (mut rows, mut projections) = (0, Vec::new());
                for tensor in &tensors {
                    let moved =
                        |of: &AdaptableRows| AdaptableRows { first: of.first + rows, ..*of };
                    projections.extend(tensor.projections.iter().map(moved));
                    rows += tensor.ne[1] as usize;
                }
                let ne = tensors.first()?.ne;
                return Some(Targets { ne, rows: rows as u64, projections });
            }
            let Some(part) = parts.iter().position(|part| *part == what) else { continue };
            let Some(tensor) = tensor(whole) else { continue };
            let mut projections = tensor.projections.clone();
            projections.sort_by_key(|of| of.first);
            if projections.len() != parts.len() {
                continue;
            }
            let of = projections[part];
            let own = AdaptableRows { first: 0, ..of };
            return Some(Targets {
                ne: tensor.ne,
                rows: (of.rows * of.per_expert) as u64,
                projections: vec![own],
            });
        }
        None
    }

    fn low_rank(
        &self,
        factors: &LowRankFactors<'_>,
        rows: AdaptableRows,
    ) -> Result<LowRankTerm, AdapterOpenError> {
        let linear = self.model.weights().linears().nth(rows.number);
        // That of NVFP4 belongs to its weights. Another one is of the products, the adapter's too: Gemma 4's experts have one.
        if linear
            .is_some_and(|of| !of.matrix.scales.is_empty() && of.matrix.ty != WeightType::NVFP4)
        {
            return Err(AdapterOpenError::NotApplied {
                path: self.path.into(),
                name: factors.a.name.trim_end_matches(".lora_a").into(),
                hint: ": its products have a factor of their own",
            });
        }
        let magnitude = factors.magnitude.as_ref().map(|info| self.floats(info)).transpose()?;
        let mut term = LowRankTerm {
            a: self.floats(&factors.a)?,
            b: self.floats(&factors.b)?,
            rank: factors.rank as usize,
            cols: factors.a.ne[0] as usize,
            all_rows: factors.b.ne[1] as usize,
            first: rows.first,
            rows: rows.rows,
            per_expert: rows.per_expert,
            alpha: self.alpha,
            bias: factors.bias.as_ref().map(|info| self.floats(info)).transpose()?,
            gains: None,
        };
        if let Some(magnitude) = magnitude {
            let linear = linear.filter(|linear| linear.matrix.count() == 1).ok_or_else(|| {
                let name = factors.a.name.into();
                let hint = ": magnitudes of the heads of a stack";
                AdapterOpenError::NotApplied { path: self.path.into(), name, hint }
            })?;
            // The weights are read.
            self.model.wait_loaded().map_err(|error| of_model(error, self.path))?;
            term.gains = Some(self.gains(&term, magnitude.get(self.map), linear));
        }
        Ok(term)
    }

    /// Computes the factors on the products of a projection, less 1, by which a change keeps the norms of its matrix's rows at these magnitudes (DoRA).
    fn gains(&self, term: &LowRankTerm, magnitude: Numbers<'_>, linear: &Linear) -> Box<[f32]> {
        let isa = Isa::best();
        let matrix = linear.matrix.view(self.model.store());
        let factor = linear.matrix.scales.first().copied().unwrap_or(1.0);
        let mut gains = vec![0.0; term.all_rows];
        let mut row = vec![0.0; term.cols];
        let (a, b) = (term.a_of(self.map, 0), term.b_of(self.map, 0));
        let scale = term.factor(1.0);
        let mut widened = vec![0.0; a.len()];
        a.each_stretch(isa, |range, values| widened[range].copy_from_slice(values));
        for r in 0..term.rows {
            matrix.dequantize_row(r, &mut row);
            vec::scale(isa, &mut row, factor);
            for (k, a) in widened.chunks_exact(term.cols).enumerate() {
                vec::add_times(isa, &mut row, a, scale * b.get(r * term.rank + k));
            }
            let norm = vec::root_of_squares(vec::dot(isa, &row, &row));
            let at = term.first + r;
            gains[at] = magnitude.get(at) / norm - 1.0;
        }
        gains.into()
    }

    /// The numbers of a tensor of the adapter: in place if they are floats.
    fn floats(&self, info: &TensorInfo<'_>) -> Result<Floats, AdapterOpenError> {
        let bytes = &self.map.bytes()[info.range()];
        let not_applied = || AdapterOpenError::NotApplied {
            path: self.path.into(),
            name: info.name.into(),
            hint: ": its type is not supported",
        };
        let ty = WeightType::of(info.ty).ok_or_else(not_applied)?;
        if Numbers::in_place(ty, bytes).is_some() {
            return Ok(Floats::Mapped(ty, info.range()));
        }
        if let Some(values) = self.converted.borrow().get(&info.offset) {
            return Ok(Floats::Own(values.clone()));
        }
        let mut values = vec![0.0; info.elements() as usize];
        dequantize_row(ty, bytes, &mut values);
        self.map.check()?;
        let values: Arc<[f32]> = values.into();
        self.converted.borrow_mut().insert(info.offset, values.clone());
        Ok(Floats::Own(values))
    }

    fn wrong_shape(&self, name: &str, found: Vec<u64>, expected: Vec<u64>) -> AdapterOpenError {
        let (path, name, model) = (self.path.into(), name.into(), self.model.name().into());
        AdapterOpenError::Shape { path, name, model, found, expected }
    }
}

/// The projections that a change is for, and what it has to fit.
struct Targets {
    ne: [u64; 4],
    /// Rows of each expert.
    rows: u64,
    projections: Vec<AdaptableRows>,
}
