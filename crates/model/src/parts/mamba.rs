//! Mamba (Gu and Dao 2023): a short causal convolution of inputs, and a selective scan, whose step lengths, keys and queries are projections of what the
//! convolution puts out; a gate follows. Step lengths, keys and queries are normed in some models (Falcon-Mamba, Jamba).
//!
//! Its state, in f32, holds the inputs of the convolution's last tokens and the states of channels. Every token is computed in the same order of operations,
//! alone or in a batch.

use alight_kernels::gate::silu_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{HeadRows, Rows, SelectiveScan};
use alight_kernels::recurrent::COLUMNS;

use super::convolution::{Columns, Convolution, MAX_TAPS};
use super::routing::softplus;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// Maximum elements of a channel's state, far above any model's.
const MAX_LEN: usize = 4096;

/// A Mamba mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// Channels.
    pub channels: usize,
    /// Elements of a channel's state, of a key and of a query.
    pub len: usize,
    /// Width between the two projections for step lengths.
    pub rank: usize,
    /// Number of tokens that the convolution looks at, including the current one.
    pub taps: usize,
    /// The norms of the first projection for step lengths, of keys and of queries.
    pub norms: MambaNorms,
}

/// The norms of a Mamba mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MambaNorms {
    /// There are none.
    None,
    /// They have no weights.
    Unweighted,
    /// They have weights of their own.
    Weighted,
}

impl MambaSpec {
    /// Reads its keys, without norms unless one says that there are some without weights.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<MambaSpec, SpecError> {
        // Of Mamba 2: here each channel has its own.
        keys.do_not_apply(&["ssm.group_count"]);
        let taps = keys.dimension("ssm.conv_kernel", MAX_TAPS)?;
        let len = keys.dimension("ssm.state_size", MAX_LEN)?;
        let rank = keys.dimension("ssm.time_step_rank", MAX_WIDTH)?;
        let channels = keys.dimension("ssm.inner_size", MAX_WIDTH / 2)?;
        if !len.is_multiple_of(4) {
            let what = "states whose length is not a multiple of 4";
            return Err(keys.unsupported("ssm.state_size", len, what));
        }
        if !channels.is_multiple_of(COLUMNS) {
            let what = "channels whose number is not a multiple of 16";
            return Err(keys.unsupported("ssm.inner_size", channels, what));
        }
        let norms = match keys.get::<bool>("ssm.dt_b_c_rms")? {
            Some(true) => MambaNorms::Unweighted,
            _ => MambaNorms::None,
        };
        Ok(MambaSpec { channels, len, rank, taps, norms })
    }

    /// Returns the width of step lengths before their second projection, of keys and of queries.
    fn chosen(&self) -> usize {
        self.rank + 2 * self.len
    }

    /// Returns the f32 elements of the convolution's state, `[taps − 1, channels]`.
    fn convolved_len(&self) -> usize {
        Convolution::state_len([self.taps, self.channels])
    }
}

impl PartSpec for MambaSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Mamba::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: inputs and then gates in `q`, the result of the convolution in `mixed`, step lengths before their second
    /// projection, keys and queries in `k`, step lengths in `gate`.
    fn work(&self, _hidden: usize) -> WorkSize {
        WorkSize {
            q: 2 * self.channels,
            mixed: self.channels,
            k: self.chosen(),
            gate: self.channels,
            heads_out: self.channels,
            widest_input: self.channels.max(self.rank),
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for MambaSpec {
    /// Returns the f32 elements of its state: the convolution's, then [`SelectiveScan::state_len`].
    fn state_len(&self) -> usize {
        self.convolved_len() + SelectiveScan::state_len(self.channels, self.len)
    }
}

/// The tensors of a Mamba mixer.
#[derive(Debug)]
struct Mamba {
    spec: MambaSpec,
    /// `[2 · channels, hidden]`: inputs, then gates.
    input: Linear,
    /// `[rank + 2 · len, channels]`: step lengths, keys, queries.
    chosen: Linear,
    /// `[channels, rank]`, with a bias.
    lengths: Linear,
    /// `[hidden, channels]`
    out: Linear,
    /// Of the inputs.
    convolution: Convolution,
    /// Of step lengths, keys and queries, `[rank]` and twice `[len]`; or none.
    norms: Vec<Norm>,
    /// Rates of decay, at most 0: `[channels / COLUMNS, len, COLUMNS]`.
    rates: Vec<f32>,
    /// Factors on the inputs that bypass the states, `[channels]`.
    past: Vec<f32>,
}

impl Mamba {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &MambaSpec,
        hidden: usize,
    ) -> Result<Mamba, WeightError> {
        let MambaSpec { channels, len, rank, taps, .. } = *spec;
        let by_channel = find.table("ssm_a", [len, channels])?;
        let rate = |i: usize| {
            let (block, rest) = (i / (len * COLUMNS), i % (len * COLUMNS));
            by_channel[(block * COLUMNS + rest % COLUMNS) * len + rest / COLUMNS]
        };
        let sizes = [("ssm_dt_norm", rank), ("ssm_b_norm", len), ("ssm_c_norm", len)];
        let norms = match spec.norms {
            MambaNorms::None => Vec::new(),
            MambaNorms::Unweighted => {
                sizes.into_iter().map(|(_, size)| find.unweighted_norm(size)).collect()
            }
            MambaNorms::Weighted => sizes
                .into_iter()
                .map(|(name, size)| find.norm(name, size))
                .collect::<Result<_, _>>()?,
        };
        Ok(Mamba {
            spec: spec.clone(),
            input: find.linear("ssm_in", hidden, 2 * channels)?,
            chosen: find.linear("ssm_x", channels, spec.chosen())?,
            lengths: find.linear("ssm_dt", rank, channels)?,
            out: find.linear("ssm_out", channels, hidden)?,
            convolution: Convolution::find(find, "ssm_conv1d", [taps, channels], true)?,
            norms,
            rates: (0..channels * len).map(rate).collect(),
            past: find.vector("ssm_d", channels)?,
        })
    }

    /// Applies the convolution to the inputs in `q`, into `mixed`; its part of the state becomes that of the last row.
    fn convolve(&self, step: &mut Step<'_>) {
        let (isa, width) = (step.compute.isa, self.spec.channels);
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let (earlier, _) = state.split_at_mut(self.spec.convolved_len());
            let (first, n) = (span.rows.start, span.rows.len());
            let inputs = Columns { rows: &b.q[first * 2 * width..], stride: 2 * width, first: 0 };
            let before = &*earlier;
            let rows = [Rows::starting_at(&mut b.mixed, width, first)];
            step.compute.each_row(n, rows, &b.threads, &|i, [mixed], _| {
                self.convolution.apply(isa, before, inputs, i, mixed);
            });
            self.convolution.keep(earlier, inputs, n);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, 0..self.spec.convolved_len());
        }
    }

    /// Computes step lengths into `gate`, keys and queries into `k`.
    fn choose(&self, step: &mut Step<'_>) {
        let MambaSpec { channels, len, rank, .. } = self.spec;
        let (isa, compute, n) = (step.compute.isa, step.compute, step.rows());
        let [chosen, lengths] = [&self.chosen, &self.lengths].map(|linear| linear.view(step.store));
        let all = self.spec.chosen();
        let b = &mut *step.buffers;
        let (acts, threads) = (&mut b.acts, &b.threads);
        let formats = ActivationFormats::of(self.chosen.kinds());
        compute.pack_rows(n, Rows::new(&mut b.mixed, channels), acts, formats, threads);
        compute.project(&chosen, Rows::new(&mut b.k, all), acts, threads);
        let formats = ActivationFormats::of(self.lengths.kinds());
        let rows = [Rows::new(&mut b.k, all)];
        compute.pack(n, rank, rows, acts, formats, threads, &|_, [row], _, put| {
            if let [of_lengths, of_keys, of_queries] = &self.norms[..] {
                of_lengths.apply(isa, &mut row[..rank]);
                of_keys.apply(isa, &mut row[rank..rank + len]);
                of_queries.apply(isa, &mut row[rank + len..]);
            }
            put(&mut row[..rank]);
        });
        compute.project(&lengths, Rows::new(&mut b.gate, channels), acts, threads);
        compute.each_row(n.all(), [Rows::new(&mut b.gate, channels)], threads, &|_, [row], _| {
            row.iter_mut().for_each(|length| *length = softplus(*length));
        });
    }

    /// Applies the scan to the rows: `[rows, channels]` into `heads_out`.
    fn scan(&self, step: &mut Step<'_>) {
        let MambaSpec { channels, len, rank, .. } = self.spec;
        let all = self.spec.chosen();
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let (convolved, whole) = (self.spec.convolved_len(), state.len());
            let (_, state) = state.split_at_mut(convolved);
            let first = span.rows.start;
            let scan = SelectiveScan {
                channels,
                len,
                inputs: HeadRows { rows: &b.mixed[first * channels..], stride: channels },
                lengths: HeadRows { rows: &b.gate[first * channels..], stride: channels },
                keys: HeadRows { rows: &b.k[first * all + rank..], stride: all },
                rates: &self.rates,
                past: &self.past,
            };
            let out = Rows::starting_at(&mut b.heads_out, channels, first);
            let threads = &mut step.compute.threads(&b.threads);
            scan.run(threads, step.compute.isa, span.rows.len(), state, out);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, convolved..whole);
        }
    }
}

impl Part for Mamba {
    fn linears(&self) -> Vec<&Linear> {
        vec![&self.input, &self.chosen, &self.lengths, &self.out]
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.input, &mut self.chosen, &mut self.lengths, &mut self.out]
    }

    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.input.kinds())
    }

    fn forward(&self, step: &mut Step<'_>) {
        let width = self.spec.channels;
        let isa = step.compute.isa;
        let [input, out] = [&self.input, &self.out].map(|linear| linear.view(step.store));
        let b = &mut *step.buffers;
        step.compute.project(&input, Rows::new(&mut b.q, 2 * width), &b.acts, &b.threads);
        self.convolve(step);
        self.choose(step);
        self.scan(step);
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.heads_out, width).copy(from, to);
            Rows::new(&mut b.q, 2 * width).copy(from, to);
        });
        if !some {
            return;
        }
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, width), Rows::new(&mut b.q, 2 * width)];
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        let n = b.batch.counts();
        step.compute.pack(n, width, rows, acts, formats, threads, &|_, [y, q], _, put| {
            let gate = &mut q[width..];
            silu_mul(isa, gate, y);
            put(gate);
        });
        step.compute.project(&out, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
