//! `alight quantize`: a model file with weights of another type.

use std::path::PathBuf;

use alight_convert::{Quantization, QuantizationMix, TensorPattern, TensorTypes, quantized_type};
use alight_formats::GgmlType;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::conversion::{speed, with_progress};
use crate::hub::HubArgs;
use crate::outcome::Outcome;
use crate::pack::OutputArgs;
use crate::{convert, say, source, threads};

/// Arguments of `alight quantize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight quantize model-bf16.gguf -o model-q4_k_m.gguf --type q4_k_m
  alight quantize model-f16.gguf -o model-q8_0.gguf --type q8_0
  alight quantize model-bf16.gguf -o model-q3_k_m.gguf --type q3_k_m --imatrix model.imatrix.gguf
  alight quantize model-bf16.gguf -o mine.gguf --type q4_k_m --tensor-type 'ffn_down=q6_k' --tensor-type 'attn_v=q8_0'
  alight quantize model-f16.gguf model-q8_0.gguf Q8_0 4  llama-quantize's order

Types, from the largest file to the smallest: f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, \
q4_k_m, q4_k_s, q4_1, q4_0, mxfp4_moe, iq4_nl, iq4_xs, q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s, q2_0, \
tq2_0, tq1_0, q1_0. The names and the mixes are llama.cpp's: the output matrix gets at least 6 bits, \
and with q4_k_m and q5_k_m half of the value and down matrices too; mxfp4_moe is for experts, all else \
gets 8 bits. The last four are for models that were trained with so few values. Norms and biases stay \
as they are. Rows that are no whole blocks of a type get the next larger one, which is reported.

--tensor-type, --output-tensor-type and --token-embedding-type give tensors other types than the mix does; a name is that \
of `alight inspect --tensors`, and they mean what they mean to llama-quantize: patterns change mixes of blocks, not f16 and bf16.

With --imatrix an error counts by how much its column is used, which helps most below 5 bits; the \
mixes are then those that llama.cpp has with such a file.

The new file appears when it is complete; until then, whatever happens, an old one stays.")]
pub struct QuantizeArgs {
    /// The model: a .gguf file (of a split model, any shard), or a folder with one model in it
    pub model: PathBuf,

    /// Type of the matrices in the new file
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, hide_possible_values = true, value_parser = mixes())]
    mix: QuantizationMix,

    /// Type of the tensors in whose names PATTERN, a regular expression, is found; several: the first that is found decides
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor_type: Vec<TensorPattern>,

    /// Type of the output matrix, also if that is the embedding
    #[arg(long, value_name = "TYPE", value_parser = quantized_type)]
    output_tensor_type: Option<GgmlType>,

    /// Type of the embedding
    #[arg(long, value_name = "TYPE", value_parser = quantized_type)]
    token_embedding_type: Option<GgmlType>,

    /// Importance matrix: a file of `alight imatrix`, or of llama-imatrix
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,

    /// Threads [default: one for each processor]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    threads: Option<usize>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Parses a type; completions list the names.
fn mixes() -> impl TypedValueParser<Value = QuantizationMix> {
    let named = QuantizationMix::ALL.map(|mix| {
        let name = mix.to_string().to_lowercase();
        // `q4_k` means `q4_k_m`.
        let short = name.strip_suffix("_m").map(str::to_owned);
        PossibleValue::new(name).aliases(short)
    });
    PossibleValuesParser::new(named).try_map(|name| name.parse::<QuantizationMix>())
}

/// Runs the command.
pub fn main(args: &QuantizeArgs) -> Outcome {
    let model = source::model_file(&args.model)?;
    if let Some(imatrix) = &args.imatrix {
        source::check_path(imatrix)?;
    }
    let types = TensorTypes {
        patterns: args.tensor_type.clone(),
        output: args.output_tensor_type,
        embedding: args.token_embedding_type,
    };
    let quantization = Quantization { mix: args.mix, types, imatrix: args.imatrix.as_deref() };
    let threads = threads::or_all(args.threads);
    let (about, done) = with_progress("quantizing", |on_progress| {
        alight_convert::quantize(
            &model,
            &args.output.output,
            &quantization,
            threads,
            args.output.options(),
            on_progress,
        )
    })
    .map_err(|stop| source::explain_stop(&model, stop))?;
    say::line(&format!("{}: {}", args.output.output.display(), speed(&done.volume)));
    threads::note(done.volume.threads);
    convert::plan(&about);
    Ok(())
}
