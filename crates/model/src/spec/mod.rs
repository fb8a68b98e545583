//! A network as data: its layers, each with its parts, read from the metadata and checked.
//!
//! The forward pass can run every [`ModelSpec`] that exists: dimensions are positive and bounded, heads divide as they must, and
//! floats are finite and of the right sign. An architecture (`arch`) is one file that builds a `ModelSpec` from the metadata; the
//! parts that it may use are in `parts`, each of which reads its own keys.

pub(crate) mod arch;
pub(crate) mod pooling;
pub(crate) mod rope;
pub(crate) mod sizes;
pub(crate) mod window;

use alight_formats::gguf::Gguf;
use alight_kernels::attention::Window;
use alight_kernels::rope::RopeParams;

pub use self::arch::{Architecture, architectures};
pub use self::pooling::{ClassifierSpec, HeadActivation, Pooling};
pub use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS};
use crate::norm::OUTPUT_NORM;
pub use crate::norm::{NormKind, NormSpec};
pub use crate::parts::attention::{
    AttentionSpec, GateFunction, Mask, OutputGate, QkNorm, Temperature,
};
use crate::parts::buffers::WorkSize;
pub use crate::parts::channel_mix::ChannelMixSpec;
pub use crate::parts::delta_net::DeltaNetSpec;
pub use crate::parts::dense::{Activation, DenseSpec, InputMatrices, Xielu};
pub use crate::parts::dense_and_experts::DenseAndExpertsSpec;
pub use crate::parts::experts::{ExpertsSpec, SharedExpert};
pub use crate::parts::kda::KdaSpec;
pub use crate::parts::latent_attention::LatentAttentionSpec;
pub use crate::parts::latent_experts::LatentExpertsSpec;
pub use crate::parts::mamba::{MambaNorms, MambaSpec};
pub use crate::parts::mamba2::Mamba2Spec;
pub use crate::parts::projection::ProjectionSpec;
pub use crate::parts::routing::{Gating, Routing};
pub use crate::parts::rwkv::Rwkv7Spec;
pub use crate::parts::rwkv6::Rwkv6Spec;
pub use crate::parts::score_bias::ScoreBias;
pub use crate::parts::short_conv::ShortConvSpec;
pub use crate::parts::two_mixers::TwoMixersSpec;
pub use crate::parts::{Attended, FeedForward, Mixer};
use crate::parts::{laurel, token_input};
use crate::positions::most_kept;

/// A network: its sizes, its layers, and the steps before and after them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name in `general.architecture`.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// The properties shared by all norms.
    pub norm: NormSpec,
    /// The name in the file of the norm before the output; `None`: there is no such norm.
    pub output_norm: Option<&'static str>,
    /// True if tokens follow from the final states. An encoder's do not: it has no output matrix.
    pub has_output: bool,
    /// The pooling that the file states: what the model's vectors are meant to be.
    pub pooling: Option<Pooling>,
    /// The head that gives texts scores, if the file has one.
    pub classifier: Option<ClassifierSpec>,
    /// The names in the file of the projections that a pooled vector passes, one after the other, of which it may lack some.
    pub projections: &'static [&'static str],
    /// Length of a pooled vector after these projections.
    pub embedding_size: usize,
    /// True if the inputs that layers get from a token ([`LayerSpec::token_input`]) have a table, besides a projection of the token's embedding.
    pub token_table: bool,
    /// Factor on the rows of the embedding.
    pub embedding_scale: f32,
    /// The number of positions that have an embedding of their own, which is added to the token's; later positions cannot be
    /// computed. `None`: positions are seen by attention alone.
    pub positions: Option<usize>,
    /// The number of segments of a text (the two texts of a pair), which have an embedding each; 0: they have none.
    pub segments: usize,
    /// The norm of the sum of these embeddings.
    pub embedding_norm: EmbeddingNorm,
    /// The beginning of the names of layers' tensors in the file, before the number.
    pub layer_prefix: &'static str,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// How often `layers` contains each layer of the file: a token passes them as often, with keys and values of its own each time.
    pub passes: usize,
    /// True if a token has several residual streams; a layer computes one of them and predicts the others.
    pub alt_up: bool,
    /// The rotary embeddings that layers refer to by their index. If the file has a `rope_freqs` tensor, its factors
    /// are in the first.
    pub ropes: Vec<RopeParams>,
    /// The differences in sequences longer than the original context.
    pub long_context: LongContext,
    /// The number of layers that follow in the file and predict further tokens.
    pub draft_layers: usize,
    /// The layer that predicts the token after the next (multi-token prediction), if its computation is known. It proposes tokens
    /// that may come next; it never contributes to an answer.
    pub mtp_layer: Option<LayerSpec>,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f32>,
    /// The keys under the architecture's name that were not read, and may change what other programs compute.
    pub unread_keys: Vec<String>,
}

/// The norm of what the first layer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// There is none.
    None,
    /// It has no weights.
    Unweighted,
    /// The name of its weights in the file.
    Named(&'static str),
}

/// The first rotary embedding in long sequences (LongRoPE: Phi 3 and 4, MiniCPM): the file has two lists of factors.
#[derive(Clone, Debug, PartialEq)]
pub struct LongContext {
    /// Sequences longer than this are long.
    pub original: usize,
    /// Factor on cosines and sines, in short sequences too.
    pub magnitude: f32,
    /// True if the keys announce factors in the file.
    pub announced: bool,
    /// The first rotary embedding in long sequences; `None`: the file has no factors, and long sequences are not different.
    pub rope: Option<RopeParams>,
}

/// A layer: `x += residual_scale · norm(mixer(norm(x)))`, then the same with the feed-forward part. `norms` lists the norms that
/// are present. A layer has at least one of the two parts.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The part that exchanges information between positions; `None`: the layer is only a feed-forward part.
    pub mixer: Option<Mixer>,
    /// The part that computes on each position by itself; `None`: the layer is only a mixer.
    pub feed_forward: Option<FeedForward>,
    /// The norms of the layer.
    pub norms: Norms,
    /// Added to the mean square in the norms of outputs, if other norms have another number.
    pub output_eps: Option<f32>,
    /// True if the feed-forward part has the same input as the mixer: the residual stream before the mixer's output is added.
    pub parallel: bool,
    /// Factor on both outputs before they are added.
    pub residual_scale: f32,
    /// Factor on the residual stream after the layer.
    pub output_scale: f32,
    /// Width of a third part's input from the token itself; 0: there is no such part.
    pub token_input: usize,
    /// Length of the short row in the path of the mixer's input around the mixer; 0: there is no such path.
    pub laurel: usize,
}

/// The keys and values of a layer in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of a position, as f16.
    pub bytes: usize,
    /// The maximum number of positions of a sequence that are kept in a session with the usual options, if the layer has a window.
    pub positions: Option<usize>,
}

impl Stored {
    /// Returns how many of the first `positions` positions of a sequence are kept.
    pub fn kept_of(&self, positions: usize) -> usize {
        self.positions.map_or(positions, |most| most.min(positions))
    }
}

/// Maximum number of prompt tokens that a session usually computes together.
pub(crate) const USUAL_BATCH: usize = 512;

impl LayerSpec {
    /// Its attention part, if it has one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Some(Mixer::Attention(attention)) => Some(attention),
            Some(Mixer::Two(both)) => Some(&both.attention),
            _ => None,
        }
    }

    /// A layer of these parts and norms, one part after the other.
    pub(crate) fn new(
        mixer: Option<Mixer>,
        feed_forward: Option<FeedForward>,
        norms: Norms,
    ) -> LayerSpec {
        LayerSpec {
            mixer,
            feed_forward,
            norms,
            output_eps: None,
            parallel: false,
            residual_scale: 1.0,
            output_scale: 1.0,
            token_input: 0,
            laurel: 0,
        }
    }

    /// The buffer sizes that its parts need.
    pub(crate) fn work(&self, hidden: usize) -> WorkSize {
        let mixer = self.mixer.as_ref().map(|part| part.spec().work(hidden));
        let feed_forward = self.feed_forward.as_ref().map(|part| part.spec().work(hidden));
        let beside = [laurel::work(self.laurel), token_input::work(self.token_input)].map(Some);
        let parts = [mixer, feed_forward].into_iter().chain(beside);
        parts.flatten().fold(WorkSize::default(), WorkSize::max)
    }
}

/// The norms of a layer, by the names of their weights in the file; `None`: there is no such norm. `post_attention_norm` is the
/// norm before the feed-forward part in some architectures, and the norm of the mixer's output in others. In a network of norms of
/// sums (post-norm: BERT) the normed sum is the residual stream: `x = norm(x + mixer(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// Norm of the mixer's input.
    pub mixer: Option<&'static str>,
    /// Norm of the mixer's output, before it is added.
    pub mixer_output: Option<&'static str>,
    /// Norm of the residual stream after that.
    pub mixer_sum: Option<&'static str>,
    /// Norm of the sum of that and of the residual stream before the mixer; it is then the residual stream.
    pub mixer_second: Option<&'static str>,
    /// Norm of the feed-forward part's input.
    pub feed_forward: Option<&'static str>,
    /// Norm of the feed-forward part's output, before it is added.
    pub feed_forward_output: Option<&'static str>,
    /// Norm of the residual stream after that.
    pub feed_forward_sum: Option<&'static str>,
}

impl Norms {
    /// No norms.
    const NONE: Norms = Norms {
        mixer: None,
        mixer_output: None,
        mixer_sum: None,
        mixer_second: None,
        feed_forward: None,
        feed_forward_output: None,
        feed_forward_sum: None,
    };
    /// The norm before the network's output, which a layer may have too.
    pub const OF_NETWORK: &str = OUTPUT_NORM;
    /// Norms of both inputs, as in Llama.
    pub const INPUTS: Norms =
        Norms { mixer: Some("attn_norm"), feed_forward: Some("ffn_norm"), ..Norms::NONE };
    /// A norm of the mixer's input, which is also the input of the feed-forward part, as in Cohere's models.
    pub const SHARED: Norms = Norms { feed_forward: Norms::INPUTS.mixer, ..Norms::INPUTS };
    /// Norms of both outputs, as in OLMo 2.
    pub const OUTPUTS: Norms = Norms {
        mixer_output: Some("post_attention_norm"),
        feed_forward_output: Some("post_ffw_norm"),
        ..Norms::NONE
    };
    /// Norms of both sums, as in BERT.
    pub const SUMS: Norms = Norms {
        mixer_sum: Some("attn_output_norm"),
        feed_forward_sum: Some("layer_output_norm"),
        ..Norms::NONE
    };
    /// Norms of both inputs and both outputs, as in Gemma.
    pub const BOTH: Norms = Norms {
        mixer_output: Norms::OUTPUTS.mixer_output,
        feed_forward_output: Norms::OUTPUTS.feed_forward_output,
        ..Norms::INPUTS
    };
}

impl ModelSpec {
    /// Reads and checks the metadata of a model. What follows from tensors is not in it yet: [`ModelSpec::classifier`] is that of a
    /// file that may have none, and [`ModelSpec::embedding_size`] the hidden size.
    ///
    /// # Errors
    /// The first key that is missing, of the wrong type, or has a value that no model can have; an architecture or a feature that
    /// is not implemented.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<ModelSpec, SpecError> {
        let architecture = arch::named(gguf.require("general.architecture")?)?;
        let keys = Keys::new(gguf, architecture.name);
        let mut spec = (architecture.read)(&keys)?;
        spec.pooling = Pooling::read(&keys)?.or(spec.pooling);
        if spec.classifier.is_none() {
            let of = if spec.is_bidirectional() { Pooling::Cls } else { Pooling::Last };
            spec.classifier = Some(ClassifierSpec::read(&keys, of, HeadActivation::Tanh)?);
        }
        let bidirectional = |mixer: &Mixer| match mixer {
            Mixer::Attention(attention) => attention.mask.is_bidirectional(),
            Mixer::ShortConv(convolution) => convolution.centred,
            _ => false,
        };
        if keys.get::<bool>(AttentionSpec::CAUSAL)? == Some(false)
            && !spec.mixers().all(|(_, mixer)| bidirectional(mixer))
        {
            return Err(keys.unsupported(
                AttentionSpec::CAUSAL,
                false,
                "this architecture with attention in both directions",
            ));
        }
        if spec.ropes.is_empty() {
            keys.do_not_apply_under("rope.");
        }
        if spec.attended().next().is_none() {
            keys.do_not_apply_under("attention.");
        }
        spec.unread_keys = keys.unread();
        Ok(spec)
    }

    /// Gives the first layers of a network of mixtures a dense part; a key states their number.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn put_dense_before_experts(
        &mut self,
        keys: &Keys<'_, '_>,
    ) -> Result<(), SpecError> {
        let leading = keys.get::<u64>("leading_dense_block_count")?.unwrap_or(0);
        let leading = usize::try_from(leading).unwrap_or(MAX_LAYERS).min(self.layers.len());
        if leading > 0 {
            let dense = DenseSpec::read_beside_experts(keys)?;
            let dense = Some(dense.into());
            self.layers[..leading].iter_mut().for_each(|l| l.feed_forward.clone_from(&dense));
        }
        Ok(())
    }

    /// Gives the layers of a network of mixtures for which the file has no router a dense part.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn put_dense_without_router(
        &mut self,
        keys: &Keys<'_, '_>,
    ) -> Result<(), SpecError> {
        // The number of those before the first router, in files of networks that have no others.
        keys.do_not_apply(&["leading_dense_block_count"]);
        let routed = |i| keys.gguf.tensor(&format!("blk.{i}.ffn_gate_inp.weight")).is_some();
        let others = self.layers.iter_mut().enumerate().filter(|(i, _)| !routed(*i));
        let mut others = others.peekable();
        if others.peek().is_some() {
            let dense = Some(DenseSpec::read_beside_experts(keys)?.into());
            others.for_each(|(_, layer)| layer.feed_forward.clone_from(&dense));
        }
        Ok(())
    }

    /// Gives all but the last layer of each period of a network of mixtures a dense part; a key states the period.
    ///
    /// # Errors
    /// A period or size that no model can have.
    pub(crate) fn put_dense_between_experts(
        &mut self,
        keys: &Keys<'_, '_>,
    ) -> Result<(), SpecError> {
        let period = keys.dimension("interleave_moe_layer_step", MAX_LAYERS)?;
        if period > 1 {
            let dense = Some(DenseSpec::read_beside_experts(keys)?.into());
            let others = self.layers.iter_mut().enumerate();
            let others = others.filter(|(i, _)| !(i + 1).is_multiple_of(period));
            others.for_each(|(_, layer)| layer.feed_forward.clone_from(&dense));
        }
        Ok(())
    }

    /// Makes a token pass the layers `passes` times.
    pub(crate) fn repeat_layers(&mut self, passes: usize) {
        self.layers = std::iter::repeat_n(&self.layers, passes).flatten().cloned().collect();
        self.passes = passes;
    }

    /// Adds the layer that predicts the token after the next, which is like the last layer with attention.
    pub(crate) fn with_mtp(mut self) -> ModelSpec {
        if self.draft_layers == 1 {
            let attends = |layer: &&LayerSpec| {
                layer.mixer.as_ref().is_some_and(|mixer| mixer.spec().attended().is_some())
            };
            self.mtp_layer = self.layers.iter().rfind(attends).cloned();
        }
        self
    }

    /// The mixers of the layers that have one, with the number of the layer.
    pub fn mixers(&self) -> impl DoubleEndedIterator<Item = (usize, &Mixer)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.mixer.as_ref()?)))
    }

    /// The attention parts of the layers that have one.
    pub fn attention_layers(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// The window of a layer, if its keys and values need not be kept once no later token sees them: nor does a token in another layer that uses them.
    pub(crate) fn kept_window(&self, layer: usize) -> Option<Window> {
        let own = self.layers.get(layer)?.attention()?.mask;
        let mut users = self.attention_layers().filter(|other| other.kv_layer == Some(layer));
        let alike = users.all(|user| user.mask == own);
        let short = own.window().is_some_and(|window| window < self.context);
        own.causal_window().filter(|_| alike && short && !self.is_bidirectional())
    }

    /// True if tokens see later ones. Such a network reads a text as a whole, and does not continue it.
    pub fn is_bidirectional(&self) -> bool {
        self.attention_layers().any(|attention| attention.mask.is_bidirectional())
    }

    /// The number of positions that can be computed, if there is a limit: those that have embeddings or biases of scores, or of which none are left out.
    pub fn max_positions(&self) -> Option<usize> {
        let reaches = self.attention_layers().filter_map(|attention| attention.reach);
        let latent = self.mixers().filter_map(|(_, mixer)| match mixer {
            Mixer::LatentAttention(attention) => attention.reach,
            _ => None,
        });
        self.positions.into_iter().chain(reaches).chain(latent).min()
    }

    /// True if the network can continue a text: tokens follow from its states, and none of them sees later ones.
    pub fn generates(&self) -> bool {
        self.has_output && !self.is_bidirectional()
    }

    /// The attention parts, mutable.
    pub(crate) fn attention_layers_mut(&mut self) -> impl Iterator<Item = &mut AttentionSpec> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
            Some(Mixer::Attention(attention)) => Some(attention),
            Some(Mixer::Two(both)) => Some(&mut both.attention),
            _ => None,
        })
    }

    /// The cost of attention in each layer that has it.
    pub fn attended(&self) -> impl Iterator<Item = Attended> {
        self.mixers().filter_map(|(_, mixer)| mixer.spec().attended())
    }

    /// The keys and values of each layer that stores any.
    pub fn stored(&self) -> impl Iterator<Item = Stored> + Clone {
        let window = |layer: usize| self.layers.get(layer)?.attention()?.mask.window();
        let windows = (0..self.layers.len()).filter(|layer| self.kept_window(*layer).is_some());
        let widest = windows.filter_map(window).max();
        self.layers.iter().enumerate().filter_map(move |(index, layer)| {
            let spec = layer.mixer.as_ref()?.spec();
            let bytes = spec.kv_shape().and(spec.attended())?.bytes;
            // Layers with windows of several widths share their pages.
            let positions = self.kept_window(index).and(widest);
            let positions = positions.map(|window| most_kept(window) + USUAL_BATCH);
            Some(Stored { bytes, positions })
        })
    }

    /// Bytes of the state of each layer that has one.
    pub fn states(&self) -> impl Iterator<Item = usize> + Clone {
        let lengths = self.layers.iter().filter_map(|layer| layer.mixer.as_ref());
        let lengths = lengths.map(|mixer| mixer.spec().state_len()).filter(|length| *length > 0);
        lengths.map(|length| length * size_of::<f32>())
    }

    /// The dense feed-forward parts of the layers that have one.
    pub fn dense_layers(&self) -> impl Iterator<Item = &DenseSpec> {
        self.layers.iter().filter_map(|layer| layer.feed_forward.as_ref()?.spec().dense())
    }

    /// The mixtures of experts of the layers that have one.
    pub fn expert_layers(&self) -> impl Iterator<Item = &ExpertsSpec> {
        self.layers.iter().filter_map(|layer| layer.feed_forward.as_ref()?.spec().experts())
    }
}
