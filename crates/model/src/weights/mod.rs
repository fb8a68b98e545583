//! The weights of a model as references into its files: every tensor that the network needs, with its shape and type checked.
//! Matrices stay in the files; vectors are copied as f32.

mod head;
mod mtp;
mod suspect;
mod tables;

use std::borrow::Borrow;
use std::cell::RefCell;

use alight_formats::split::Catalog;
use alight_kernels::rope::{RopeParams, RopeScaling};
use alight_pages::Map;

pub(crate) use self::head::HeadWeights;
pub(crate) use self::mtp::{Join, MtpWeights};
pub(crate) use self::suspect::not_finite;
pub(crate) use self::tables::EmbeddingTables;
use crate::norm::Norm;
use crate::parts::Part;
use crate::parts::alt_up::{AltUp, AltUpWeights};
use crate::parts::laurel::LaurelWeights;
use crate::parts::token_input::{TokenInputWeights, TokenInputs};
use crate::spec::{LayerSpec, ModelSpec};
use crate::tensors::{Finder, LayerFinder, Linear, MatrixRef, WeightError};

/// The weights of a part and of the norms around it.
#[derive(Debug)]
pub(crate) struct Branch {
    /// `[hidden]`, the norm of its input, if there is one.
    pub(crate) norm: Option<Norm>,
    pub(crate) part: Box<dyn Part>,
    /// `[hidden]`, the norm of its output, if there is one.
    pub(crate) output_norm: Option<Norm>,
    /// `[hidden]`, the norm of the residual stream to which its output has been added, if there is one.
    pub(crate) sum_norm: Option<Norm>,
    /// `[hidden]`, of the sum of that and of the residual stream before the part, if there is one.
    pub(crate) second_norm: Option<Norm>,
}

impl Branch {
    /// Finds the norms of a part, which have these names.
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        part: Box<dyn Part>,
        [norm, output_norm, sum_norm, second_norm]: [Option<&str>; 4],
        hidden: usize,
    ) -> Result<Branch, WeightError> {
        let norm_of = |name: Option<&str>| name.map(|name| find.norm(name, hidden)).transpose();
        let (norm, output_norm) = (norm_of(norm)?, norm_of(output_norm)?);
        let (sum_norm, second_norm) = (norm_of(sum_norm)?, norm_of(second_norm)?);
        Ok(Branch { norm, part, output_norm, sum_norm, second_norm })
    }
}

/// The weights of one layer, which has at least one of the first two.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) mixer: Option<Branch>,
    pub(crate) feed_forward: Option<Branch>,
    pub(crate) token_input: Option<TokenInputWeights>,
    pub(crate) alt_up: Option<AltUpWeights>,
    pub(crate) laurel: Option<LaurelWeights>,
    /// Factor on the residual stream after the layer.
    pub(crate) output_scale: f32,
}

impl LayerWeights {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &LayerSpec,
        alt_up: bool,
        hidden: usize,
    ) -> Result<LayerWeights, WeightError> {
        let norms = &spec.norms;
        let of_layer = |branch: Result<Branch, WeightError>| {
            let mut branch = branch?;
            if let (Some(norm), Some(eps)) = (&mut branch.output_norm, spec.output_eps) {
                norm.spec.eps = eps;
            }
            Ok::<_, WeightError>(branch)
        };
        let mixer = spec.mixer.as_ref().map(|mixer| {
            let part = mixer.spec().find(find, hidden)?;
            of_layer(Branch::find(
                find,
                part,
                [norms.mixer, norms.mixer_output, norms.mixer_sum, norms.mixer_second],
                hidden,
            ))
        });
        let feed_forward = spec.feed_forward.as_ref().map(|feed_forward| {
            let part = feed_forward.spec().find(find, hidden)?;
            let norms =
                [norms.feed_forward, norms.feed_forward_output, norms.feed_forward_sum, None];
            of_layer(Branch::find(find, part, norms, hidden))
        });
        let token_input =
            (spec.token_input > 0).then(|| TokenInputWeights::find(find, spec.token_input, hidden));
        let laurel = (spec.laurel > 0).then(|| LaurelWeights::find(find, spec.laurel, hidden));
        let alt_up = alt_up.then(|| AltUpWeights::find(find, hidden));
        let output_scale = find.optional("layer_output_scale.weight", 1)?;
        Ok(LayerWeights {
            mixer: mixer.transpose()?,
            feed_forward: feed_forward.transpose()?,
            token_input: token_input.transpose()?,
            alt_up: alt_up.transpose()?,
            laurel: laurel.transpose()?,
            output_scale: output_scale.map_or(spec.output_scale, |scale| scale[0]),
        })
    }

    /// The projections of its parts.
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let parts = [&self.mixer, &self.feed_forward].into_iter().flatten();
        let inputs = self.token_input.iter().flat_map(TokenInputWeights::linears);
        parts.flat_map(|branch| branch.part.linears()).chain(inputs)
    }

    /// The same for modification.
    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let parts = [&mut self.mixer, &mut self.feed_forward].into_iter().flatten();
        let inputs = self.token_input.iter_mut().flat_map(TokenInputWeights::linears_mut);
        parts.flat_map(|branch| branch.part.linears_mut()).chain(inputs)
    }

    /// The layer's matrices, in order of use.
    pub(crate) fn matrices(&self) -> Vec<&MatrixRef> {
        let laurel = self.laurel.iter().flat_map(LaurelWeights::matrices);
        let mixer = self.mixer.iter().flat_map(|mixer| mixer.part.matrices());
        let mut all: Vec<_> = laurel.chain(mixer).collect();
        all.extend(self.feed_forward.iter().flat_map(|branch| branch.part.matrices()));
        all.extend(self.token_input.iter().flat_map(TokenInputWeights::matrices));
        all
    }

    pub(crate) fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        let laurel = self.laurel.iter_mut().flat_map(LaurelWeights::matrices_mut);
        let mixer = self.mixer.iter_mut().flat_map(|mixer| mixer.part.matrices_mut());
        let mut all: Vec<_> = laurel.chain(mixer).collect();
        all.extend(self.feed_forward.iter_mut().flat_map(|branch| branch.part.matrices_mut()));
        all.extend(self.token_input.iter_mut().flat_map(TokenInputWeights::matrices_mut));
        all
    }
}

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab, hidden]`.
    pub(crate) embed: MatrixRef,
    /// Tables that are added to its rows.
    pub(crate) tables: Option<EmbeddingTables>,
    pub(crate) token_inputs: Option<TokenInputs>,
    pub(crate) alt_up: Option<AltUp>,
    pub(crate) layers: Vec<LayerWeights>,
    /// How often `layers` contains each layer of the file.
    passes: usize,
    /// `[hidden]`.
    pub(crate) output_norm: Option<Norm>,
    /// `[vocab, hidden]`: the embedding itself if the file has no other; `None`: no tokens follow from the states.
    pub(crate) output: Option<Linear>,
    /// It makes pooled states vectors and scores.
    pub(crate) head: HeadWeights,
    /// True if the output is the embedding.
    pub(crate) tied: bool,
    /// The layer that predicts the token after the next one. It is read from the map when it is used.
    pub(crate) mtp: Option<Box<MtpWeights>>,
}

/// The weights that a network computes with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetWeights<'w> {
    pub(crate) embed: &'w MatrixRef,
    /// Joins the embedding of a token with a state.
    pub(crate) join: Option<&'w Join>,
    pub(crate) tables: Option<&'w EmbeddingTables>,
    pub(crate) token_inputs: Option<&'w TokenInputs>,
    pub(crate) alt_up: Option<&'w AltUp>,
    pub(crate) layers: &'w [LayerWeights],
    pub(crate) head: &'w HeadWeights,
    pub(crate) output_norm: Option<&'w Norm>,
    pub(crate) output: Option<&'w Linear>,
}

impl Weights {
    /// The weights that the model computes with.
    pub(crate) fn net(&self) -> NetWeights<'_> {
        NetWeights {
            embed: &self.embed,
            join: None,
            tables: self.tables.as_ref(),
            token_inputs: self.token_inputs.as_ref(),
            alt_up: self.alt_up.as_ref(),
            layers: &self.layers,
            head: &self.head,
            output_norm: self.output_norm.as_ref(),
            output: self.output.as_ref(),
        }
    }

    /// The number of layers in the file, which are the first of `layers`.
    pub(crate) fn layers_in_file(&self) -> usize {
        self.layers.len() / self.passes
    }

    /// Every matrix once.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let layers =
            self.layers.iter().take(self.layers_in_file()).flat_map(|layer| layer.matrices());
        let output = self.output.iter().filter(|_| !self.tied).map(|output| &output.matrix);
        let outputs = output.chain(self.head.matrices());
        [&self.embed].into_iter().chain(self.inputs()).chain(layers).chain(outputs)
    }

    /// The projections of the layers, and the output.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(LayerWeights::linears).chain(&self.output)
    }

    /// The same for modification.
    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.layers.iter_mut().flat_map(LayerWeights::linears_mut).chain(&mut self.output)
    }

    /// The matrices, in addition to the embedding, that a token passes before the first layer.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &MatrixRef> {
        let inputs = self.token_inputs.iter().map(|inputs| &inputs.projection.matrix);
        let tables = self.tables.iter().flat_map(EmbeddingTables::matrices);
        tables.chain(inputs).chain(self.alt_up.iter().flat_map(AltUp::matrices))
    }

    /// Bytes of the matrices that one decoded token reads: all layers and the output, but not the embedding (of which it reads
    /// one row).
    pub(crate) fn decode_bytes(&self) -> u64 {
        let layers = self.layers.iter().flat_map(|layer| layer.matrices());
        let output = self.output.as_ref().map_or(0, |output| output.matrix.len());
        layers.map(|m| m.bytes_per_token()).sum::<u64>() + output
    }

    /// Multiply-accumulates of the layers' matrices for one token, without the output's.
    pub(crate) fn prefill_macs(&self) -> u64 {
        let layers = self.layers.iter().flat_map(|layer| layer.matrices());
        layers.map(|m| m.macs()).sum()
    }

    /// Finds and checks every tensor; stores the factors of `rope_freqs` in `spec`.
    ///
    /// # Errors
    /// The first tensor that is missing or of the wrong shape or type, or that is not used in any computation: a network with
    /// unknown tensors is a different one.
    pub(crate) fn load<M: Borrow<Map>>(
        spec: &mut ModelSpec,
        catalog: &Catalog<'_>,
        maps: &[M],
    ) -> Result<Weights, WeightError> {
        let maps: Vec<&Map> = maps.iter().map(Borrow::borrow).collect();
        let find = Finder {
            catalog,
            maps: &maps,
            norms: spec.norm,
            layers: spec.layer_prefix,
            found: RefCell::default(),
            shared: RefCell::default(),
        };
        let (hidden, vocab) = (spec.hidden_size, spec.vocab);
        let embed = find.embedding("token_embd.weight", hidden, vocab)?;
        let tied = spec.has_output && catalog.get("output.weight").is_none();
        let output = spec.has_output.then(|| find_output(&find, &embed, tied)).transpose()?;
        let output_norm = spec.output_norm.map(|name| find.norm(name, hidden)).transpose()?;
        let tables = EmbeddingTables::find(&find, spec)?;
        let head = HeadWeights::find(&find, spec)?;
        let factors =
            spec.ropes.first().map(|rope| find_factors(&find, rope.dims / 2, &spec.ropes));
        let factors = factors.transpose()?.flatten();
        let alt_up = spec.alt_up;
        let in_file = spec.layers.len() / spec.passes;
        let layers = spec.layers.iter().enumerate().map(|(layer, spec)| {
            let layer = layer % in_file;
            LayerWeights::find(&LayerFinder { all: &find, layer }, spec, alt_up, hidden)
        });
        let layers = layers.collect::<Result<Vec<_>, WeightError>>()?;
        let width = spec.layers[0].token_input;
        let sizes = [spec.layers.len(), vocab, hidden];
        let inputs =
            (width > 0).then(|| TokenInputs::find(&find, (width, spec.token_table), sizes));
        let token_inputs = inputs.transpose()?;
        let alt_up = alt_up.then(|| AltUp::find(&find, hidden)).transpose()?;
        if let Some(factors) = factors {
            let rope = &mut spec.ropes[0];
            rope.scaling = with_factors("rope_freqs.weight", &rope.scaling, factors, 1.0)?;
        }
        find_long_context(&find, spec)?;
        find.all_found(spec.architecture, in_file, spec.draft_layers)?;
        let mtp = MtpWeights::find(&find, spec)?.map(Box::new);
        let mut weights = Weights {
            embed,
            tables,
            token_inputs,
            alt_up,
            layers,
            passes: spec.passes,
            output_norm,
            output,
            head,
            tied,
            mtp,
        };
        // Adapters are found by it.
        let linears = weights.linears_mut().enumerate();
        linears.for_each(|(number, linear)| linear.number = number);
        Ok(weights)
    }
}

/// Finds the factors of the first rotary embedding, which has `pairs`. Where another one has more, the file may have as many factors, of which
/// the first are its.
fn find_factors(
    find: &Finder<'_, '_>,
    pairs: usize,
    ropes: &[RopeParams],
) -> Result<Option<Vec<f32>>, WeightError> {
    let name = "rope_freqs.weight";
    let most = ropes.iter().map(|rope| rope.dims / 2).max().unwrap_or(pairs);
    let found = find.catalog.get(name).is_some_and(|placed| placed.info.ne[0] == most as u64);
    let factors = find.optional(name, if found { most } else { pairs })?;
    Ok(factors.map(|mut factors| {
        factors.truncate(pairs);
        factors
    }))
}

/// Finds the output matrix, which is the embedding if the file has no other (`tied`).
fn find_output(
    find: &Finder<'_, '_>,
    embed: &MatrixRef,
    tied: bool,
) -> Result<Linear, WeightError> {
    let (hidden, vocab) = (embed.cols(), embed.rows());
    let output = match tied {
        false => {
            let output = find.embedding("output.weight", hidden, vocab)?;
            MatrixRef { scales: find.scales("output.weight", 1)?, ..output }
        }
        true => embed.clone(),
    };
    Ok(Linear::from(output).with_bias(find.optional("output.bias", vocab)?))
}

/// Stores the factors of short and of long sequences in `spec`, if the file has any.
fn find_long_context(find: &Finder<'_, '_>, spec: &mut ModelSpec) -> Result<(), WeightError> {
    let [short, long] = ["rope_factors_short.weight", "rope_factors_long.weight"];
    if find.catalog.get(long).is_none() && !spec.long_context.announced {
        return Ok(());
    }
    let Some(rope) = spec.ropes.first().cloned() else { return Ok(()) };
    let magnitude = spec.long_context.magnitude;
    let with = |name| {
        let factors = find.vector(name, rope.dims / 2)?;
        let scaling = with_factors(name, &rope.scaling, factors, magnitude)?;
        Ok::<_, WeightError>(RopeParams { scaling, ..rope })
    };
    spec.ropes[0] = with(short)?;
    spec.long_context.rope = Some(with(long)?);
    Ok(())
}

/// Joins the factors of the tensor `name` with the scaling that the metadata requires.
fn with_factors(
    name: &str,
    scaling: &RopeScaling,
    mut factors: Vec<f32>,
    magnitude: f32,
) -> Result<RopeScaling, WeightError> {
    if let Some(index) = factors.iter().position(|f| !(1e-6..=1e30).contains(f)) {
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
    Ok(RopeScaling::Factors { factors, magnitude })
}
