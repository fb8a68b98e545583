//! Typed views on the tensors in the maps: every tensor that the hyper-parameters call for, with
//! its shape and type checked. Matrices stay where they are in the file; vectors are copied as f32.
//!
//! Shapes are innermost first, as GGUF writes them: a matrix of `[rows, cols]` is `[cols, rows]`.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use alight_formats::gguf::TensorInfo;
use alight_formats::split::{Catalog, Placed};
use alight_kernels::dequant::dequantize_row;
use alight_kernels::matmul::Matrix;
use alight_kernels::rope::RopeScaling;
use alight_kernels::{Layout, WeightType};
use alight_pages::Map;

use crate::config::Config;
use crate::error::WeightError;
use crate::load::{Place, Store};

/// A matrix: which bytes of which file, and where they are now.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRef {
    shard: usize,
    bytes: Range<usize>,
    place: Place,
    /// How the weights are arranged where they are now.
    layout: Layout,
    ty: WeightType,
    rows: usize,
    cols: usize,
}

impl MatrixRef {
    /// The matrix itself, which has to be there: who calls has passed the gate before its section.
    pub(crate) fn view<'m>(&self, store: &'m Store) -> Matrix<'m> {
        let data = store.bytes(self.shard, self.bytes.clone(), self.place);
        // The parser has checked that rows are whole blocks, and the length follows from the
        // shape; a mistake here would be ours, not the file's.
        Matrix::with_layout(self.layout, self.ty, data, self.rows, self.cols)
            .expect("a checked matrix")
    }

    /// Bytes of weights.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Number of weights: multiply-accumulates per token.
    pub(crate) fn weights(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// What decides which activations it needs.
    pub(crate) fn kind(&self) -> (WeightType, Layout) {
        (self.ty, self.layout)
    }

    /// Output features.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Where it is, or will be.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Says where it will be.
    pub(crate) fn moved(&mut self, place: Place) {
        self.place = place;
        if let Place::Tiles(_) = place {
            self.layout = Layout::Tiles;
        }
    }

    /// Where it lies in the files: shard and bytes.
    pub(crate) fn source(&self) -> (usize, Range<usize>) {
        (self.shard, self.bytes.clone())
    }
}

/// One transformer block. Biases and the norms that only some architectures have are optional.
#[derive(Debug)]
pub(crate) struct LayerRef {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) q: MatrixRef,
    pub(crate) k: MatrixRef,
    pub(crate) v: MatrixRef,
    pub(crate) o: MatrixRef,
    pub(crate) q_bias: Option<Vec<f32>>,
    pub(crate) k_bias: Option<Vec<f32>>,
    pub(crate) v_bias: Option<Vec<f32>>,
    pub(crate) o_bias: Option<Vec<f32>>,
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    pub(crate) post_attn_norm: Option<Vec<f32>>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate: MatrixRef,
    pub(crate) up: MatrixRef,
    pub(crate) down: MatrixRef,
    pub(crate) gate_bias: Option<Vec<f32>>,
    pub(crate) up_bias: Option<Vec<f32>>,
    pub(crate) down_bias: Option<Vec<f32>>,
    pub(crate) post_ffn_norm: Option<Vec<f32>>,
}

impl LayerRef {
    /// Its matrices, in the order in which they are used.
    pub(crate) fn matrices(&self) -> [&MatrixRef; 7] {
        [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
    }

    pub(crate) fn matrices_mut(&mut self) -> [&mut MatrixRef; 7] {
        let LayerRef { q, k, v, o, gate, up, down, .. } = self;
        [q, k, v, o, gate, up, down]
    }
}

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab, embedding]`.
    pub(crate) embed: MatrixRef,
    pub(crate) layers: Vec<LayerRef>,
    pub(crate) output_norm: Vec<f32>,
    /// `[vocab, embedding]`: the embedding itself where the file has no other.
    pub(crate) output: MatrixRef,
    /// `[vocab]`.
    pub(crate) output_bias: Option<Vec<f32>>,
    /// Whether the output is the embedding.
    pub(crate) tied: bool,
}

impl Weights {
    /// Every matrix once.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let layers = self.layers.iter().flat_map(|layer| layer.matrices());
        let output = (!self.tied).then_some(&self.output);
        [&self.embed].into_iter().chain(layers).chain(output)
    }

    /// Finds and checks every tensor; puts the factors of `rope_freqs` into `config`.
    ///
    /// # Errors
    /// The first tensor that is missing or of the wrong shape or type, or that nothing is computed
    /// with: a network that has more than we know of is another one.
    pub(crate) fn load<M: Borrow<Map>>(
        config: &mut Config,
        catalog: &Catalog<'_>,
        maps: &[M],
    ) -> Result<Weights, WeightError> {
        let maps: Vec<&Map> = maps.iter().map(Borrow::borrow).collect();
        let find = Finder { catalog, maps: &maps, found: RefCell::default() };
        let c = &*config;
        let (d, ff) = (c.embedding, c.feed_forward);
        let (q, k, v) = (c.heads * c.key_dim, c.kv_heads * c.key_dim, c.kv_heads * c.value_dim);

        let embed = find.embedding("token_embd.weight", d, c.vocab)?;
        let tied = catalog.get("output.weight").is_none();
        let output = match tied {
            false => find.embedding("output.weight", d, c.vocab)?,
            true => embed.clone(),
        };
        let output_bias = find.optional("output.bias", c.vocab)?;
        let output_norm = find.vector("output_norm.weight", d)?;
        let factors = find.optional("rope_freqs.weight", c.rope.dims / 2)?;
        let layers = (0..c.layers)
            .map(|i| {
                let name = |what: &str| format!("blk.{i}.{what}");
                let matrix = |what, cols, rows| find.matrix(&name(what), cols, rows);
                let vector = |what, len| find.vector(&name(what), len);
                let bias = |what, len| find.optional(&name(what), len);
                let norm = |wanted: bool, what, len| match wanted {
                    true => vector(what, len).map(Some),
                    false => Ok(None),
                };
                Ok(LayerRef {
                    attn_norm: vector("attn_norm.weight", d)?,
                    q: matrix("attn_q.weight", d, q)?,
                    k: matrix("attn_k.weight", d, k)?,
                    v: matrix("attn_v.weight", d, v)?,
                    o: matrix("attn_output.weight", c.heads * c.value_dim, d)?,
                    q_bias: bias("attn_q.bias", q)?,
                    k_bias: bias("attn_k.bias", k)?,
                    v_bias: bias("attn_v.bias", v)?,
                    o_bias: bias("attn_output.bias", d)?,
                    q_norm: norm(c.qk_norm, "attn_q_norm.weight", c.key_dim)?,
                    k_norm: norm(c.qk_norm, "attn_k_norm.weight", c.key_dim)?,
                    post_attn_norm: norm(c.post_norms, "post_attention_norm.weight", d)?,
                    ffn_norm: vector("ffn_norm.weight", d)?,
                    gate: matrix("ffn_gate.weight", d, ff)?,
                    up: matrix("ffn_up.weight", d, ff)?,
                    down: matrix("ffn_down.weight", ff, d)?,
                    gate_bias: bias("ffn_gate.bias", ff)?,
                    up_bias: bias("ffn_up.bias", ff)?,
                    down_bias: bias("ffn_down.bias", d)?,
                    post_ffn_norm: norm(c.post_norms, "post_ffw_norm.weight", d)?,
                })
            })
            .collect::<Result<Vec<_>, WeightError>>()?;
        find.all_found(c)?;
        if let Some(factors) = factors {
            config.rope.scaling = with_factors(&config.rope.scaling, factors)?;
        }
        Ok(Weights { embed, layers, output_norm, output, output_bias, tied })
    }
}

/// Joins the factors of a `rope_freqs` tensor with a scaling that the metadata asks for.
fn with_factors(scaling: &RopeScaling, mut factors: Vec<f32>) -> Result<RopeScaling, WeightError> {
    let name = "rope_freqs.weight";
    if let Some(index) = factors.iter().position(|f| !(1e-6..1e9).contains(f)) {
        let found = factors[index];
        let expected = "a positive number";
        return Err(WeightError::Value { name: name.into(), index, found, expected });
    }
    if let RopeScaling::Linear { factor } = scaling {
        factors.iter_mut().for_each(|f| *f *= factor);
    } else if let RopeScaling::Yarn { .. } = scaling {
        return Err(WeightError::Shape {
            name: name.into(),
            found: format!("[{}]", factors.len()),
            expected: "no such tensor together with YaRN scaling, which is not supported".into(),
        });
    }
    Ok(RopeScaling::Factors(factors))
}

/// Tensors that are of no use for text: heads that classify it or make vectors of it.
const OTHER_HEADS: [&str; 2] = ["cls.", "dense_"];

struct Finder<'c, 'a> {
    catalog: &'c Catalog<'a>,
    maps: &'c [&'c Map],
    /// Those that were asked for.
    found: RefCell<HashSet<*const Placed<'a>>>,
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
    fn matrix(&self, name: &str, cols: usize, rows: usize) -> Result<MatrixRef, WeightError> {
        let (shard, info) = self.tensor(name, &[cols, rows])?;
        let ty = WeightType::of(info.ty).ok_or_else(|| WeightError::Type {
            name: name.into(),
            found: info.ty.name(),
            expected: format!("one of {}", WeightType::ALL.map(|ty| ty.to_string()).join(", ")),
        })?;
        let layout = if info.packed { Layout::Tiles } else { Layout::Rows };
        Ok(MatrixRef { shard, bytes: info.range(), place: Place::Map, layout, ty, rows, cols })
    }

    /// As [`Finder::matrix`], with a row per token.
    fn embedding(&self, name: &str, cols: usize, tokens: usize) -> Result<MatrixRef, WeightError> {
        if let Some(placed) = self.catalog.get(name) {
            let ne = placed.info.ne;
            if ne[0] == cols as u64 && ne[1] != tokens as u64 && ne[2] == 1 && ne[3] == 1 {
                return Err(WeightError::Vocabulary { name: name.into(), rows: ne[1], tokens });
            }
        }
        self.matrix(name, cols, tokens)
    }

    /// A vector of finite numbers, copied as f32.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightError> {
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
    fn all_found(&self, config: &Config) -> Result<(), WeightError> {
        let found = self.found.borrow();
        let stray = |placed: &&Placed<'_>| {
            let other = OTHER_HEADS.iter().any(|head| placed.info.name.starts_with(head));
            !other && !found.contains(&std::ptr::from_ref(*placed).cast())
        };
        match self.catalog.tensors.iter().find(stray) {
            None => Ok(()),
            Some(placed) => Err(WeightError::Stray {
                name: placed.info.name.into(),
                architecture: config.architecture.name(),
            }),
        }
    }

    /// As [`Finder::vector`], for a tensor that need not be there.
    fn optional(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, WeightError> {
        match self.catalog.get(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }
}
