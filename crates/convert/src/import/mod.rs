//! Imports other programs' models into one GGUF file.
//!
//! First the kind of source is determined ([`find`](self::find)) and the headers are read; then an
//! architecture assigns a place to each tensor, and the tokenizer's files become metadata; then the file
//! is planned, and written by [`crate::write`]. Nothing is written before everything is known to fit.

mod adapter;
mod arch;
mod catalog;
mod copies;
mod dense;
mod find;
mod gguf;
mod huggingface;
mod legacy;
mod meta;
mod sentence;
mod side;
mod tensor;
mod tokenizer;
mod torch;
mod types;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_formats::ggml::blocks::Losses;
use alight_formats::gguf::write::Builder;
use alight_formats::packed::PACKED_ALIGNMENT;
use alight_formats::{Format, GgmlType};

use alight_pages::Input;

use crate::adapters::ScaledAdapter;
use crate::dest::Target;
use crate::files::Files;
use crate::imatrix::Imatrix;
use crate::mix::{ModelFacts, QuantizationMix};
use crate::order::execution_order;
use crate::tensor_types::TensorTypes;
use crate::write::{Item, Plan};
use crate::{ConvertError, OnProgress, Options, Volume};
use alight_files::{copy, parse, shards};
use dense::Dense;
pub use find::format_of;
use find::{Found, Kind};
use side::{SideFiles, SmallFiles};
use tensor::Entry;
use tokenizer::Tokens;

/// Options of a conversion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'p> {
    /// New types of the matrices; `None` to keep theirs.
    pub mix: Option<QuantizationMix>,
    /// A tokenizer file or folder, which takes precedence over the source's.
    pub tokenizer: Option<&'p Path>,
    /// An old file is from the first days of March 2023, which cannot be detected from its
    /// contents.
    pub first_days: bool,
    /// The epsilon of norms, if the source does not give it.
    pub eps: Option<f32>,
    /// Number of positions that the model was trained for, if the source does not give it.
    pub context: Option<u32>,
    /// The folder of the model that an adapter is for, of which the configuration is enough.
    pub base: Option<&'p Path>,
}

/// A planned conversion.
pub struct Conversion {
    files: Files,
    plan: Plan,
    about: About,
    /// The small files that were read in addition to the weights, and their folders.
    small: Vec<Input>,
    folders: Vec<PathBuf>,
}

/// A summary of the source and of the file to be written.
#[derive(Clone, Debug)]
pub struct About {
    /// Description of the source: "Hugging Face, 3 safetensors files".
    pub recognised: String,
    /// The architecture of the network, by its GGUF name.
    pub architecture: String,
    /// Number of tensors to be written.
    pub tensors: usize,
    /// For each pair of old and new type (by name; old blocks have names of their own), the number of
    /// tensors and their new size in bytes.
    pub changes: BTreeMap<(String, GgmlType), (usize, u64)>,
    /// Tensors that already consist of blocks and become other ones, so that they are rounded twice.
    pub rounded_twice: usize,
    /// Tensors that are left out, with the reason.
    pub skipped: Vec<(String, &'static str)>,
    /// Notes for the user: guesses, missing items.
    pub notes: Vec<String>,
    /// Number of bytes to be read.
    pub reads: u64,
    /// Number of bytes to be written.
    pub writes: u64,
}

/// The result of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct Converted {
    /// Bytes and time.
    pub volume: Volume,
    /// Losses in converting old blocks.
    pub losses: Losses,
}

/// The result of reading a source.
struct Draft {
    recognised: String,
    architecture: String,
    /// Metadata of the network, without `general.architecture` and the keys that depend on types.
    keys: Vec<(String, Entry)>,
    tokens: Tokens,
    /// In any order; their new types are chosen later.
    items: Vec<Item>,
    skipped: Vec<(String, &'static str)>,
    notes: Vec<String>,
}

impl Conversion {
    /// Plans the conversion of the model at `source`, a folder or one of its files. Only headers and
    /// small files are read.
    ///
    /// # Errors
    /// There is nothing that can be converted, or it is malformed; see [`ConvertError`].
    pub fn plan(source: &Path, request: Request<'_>) -> Result<Conversion, ConvertError> {
        let small = SmallFiles::default();
        let found = find::find(source, &small)?;
        let given = request.eps.is_some() || request.context.is_some() || request.first_days;
        if given && !matches!(found.kind, Kind::Legacy | Kind::Meta) {
            return Err(ConvertError::Source {
                path: source.into(),
                problem: "says by itself what --eps, --context and --era would: leave them out"
                    .into(),
            });
        }
        if found.kind == Kind::Gguf {
            if request.tokenizer.is_some() {
                let problem = "has a tokenizer: leave --tokenizer out".into();
                return Err(ConvertError::Source { path: source.into(), problem });
            }
            return Conversion::of_gguf(
                &found.weights[0],
                request.mix,
                &TensorTypes::default(),
                None,
            );
        }
        let side = SideFiles::new(&found.folder, request.tokenizer, &small);
        if found.kind == Kind::Peft {
            return Conversion::of_adapter(found, &side, request);
        }
        if request.base.is_some() {
            let problem = "is a model: --base is for adapters".into();
            return Err(ConvertError::Source { path: source.into(), problem });
        }
        let dense = match found.kind {
            Kind::HuggingFace => dense::find(&side)?,
            Kind::Meta | Kind::Legacy | Kind::Gguf | Kind::Peft => Vec::new(),
        };
        let weights = dense.iter().flat_map(|module| module.weights());
        let weights: Vec<PathBuf> = found.weights.iter().chain(weights).cloned().collect();
        // There is a header before every tensor (ggml), or every record (torch).
        let together = found.headers_first() && dense.iter().all(Dense::headers_first);
        let files = Files::open(&weights, !together)?;
        let draft = match found.kind {
            Kind::HuggingFace => huggingface::read(&found, &dense, &files, &side)?,
            Kind::Meta => meta::read(&found, &files, &side, request)?,
            Kind::Legacy | Kind::Gguf | Kind::Peft => legacy::read(&found, &files, &side, request)?,
        };
        let mut conversion = Conversion::of(source, files, draft, request.mix)?;
        conversion.small = small.inputs();
        conversion.folders.push(found.folder);
        conversion.folders.extend(request.tokenizer.and_then(|path| match path.is_dir() {
            true => Some(path.to_owned()),
            false => path.parent().map(Path::to_owned),
        }));
        Ok(conversion)
    }

    /// Plans the conversion of a PEFT folder.
    fn of_adapter(
        found: Found,
        side: &SideFiles,
        request: Request<'_>,
    ) -> Result<Conversion, ConvertError> {
        if request.tokenizer.is_some() {
            let problem =
                "is an adapter, which has the tokenizer of its base: leave --tokenizer out".into();
            return Err(ConvertError::Source { path: found.folder, problem });
        }
        let files = Files::open(&found.weights, false)?;
        let read = adapter::read(&found, &files, side, request.base, request.mix)?;
        let mut about = About::new(&read.plan, read.recognised, read.architecture);
        about.notes.extend(read.notes);
        about.skipped = read.skipped;
        about.reads = files.maps().iter().map(|map| map.len() as u64).sum();
        let small = side.small.inputs();
        Ok(Conversion { files, plan: read.plan, about, small, folders: vec![found.folder] })
    }

    /// Plans the conversion of a GGUF file: all shards of its model in one, tensors on pages and in the
    /// order of use, and of other types if there is a `mix`, except for those that `types` states, weighted by an importance matrix if there is
    /// one.
    ///
    /// # Errors
    /// It (or the importance matrix) is not a GGUF file, is packed, or is malformed.
    pub fn of_gguf(
        path: &Path,
        mix: Option<QuantizationMix>,
        types: &TensorTypes,
        imatrix: Option<&Path>,
    ) -> Result<Conversion, ConvertError> {
        let imatrix = imatrix.map(Imatrix::open).transpose()?;
        gguf::plan(path, gguf_files(path)?, (mix, types), imatrix, &[])
    }

    /// Plans a model with adapters merged into it.
    ///
    /// # Errors
    /// As [`of_gguf`](Conversion::of_gguf); an adapter is malformed, or for another model.
    pub(crate) fn of_merge(
        path: &Path,
        mix: Option<QuantizationMix>,
        types: &TensorTypes,
        adapters: &[ScaledAdapter<'_>],
    ) -> Result<Conversion, ConvertError> {
        gguf::plan(path, gguf_files(path)?, (mix, types), None, adapters)
    }

    /// Decides types and offsets.
    fn of(
        source: &Path,
        files: Files,
        mut draft: Draft,
        mix: Option<QuantizationMix>,
    ) -> Result<Conversion, ConvertError> {
        let number = |key: &str| {
            let (_, entry) = draft.keys.iter().find(|(known, _)| known == key)?;
            entry.first_number()
        };
        let facts = ModelFacts::read(&draft.architecture, number);
        draft.notes.extend(types::choose(&mut draft.items, mix, &facts));
        let names: Vec<&str> = draft.items.iter().map(|item| item.name.as_str()).collect();
        let order = execution_order(&names);
        let items: Vec<Item> = order.into_iter().map(|i| draft.items[i].clone()).collect();
        let mut out = Builder::new();
        out.str("general.architecture", &draft.architecture);
        // Hugging Face architectures have it among their own keys.
        if draft.keys.iter().all(|(key, _)| key != "general.type") {
            out.str("general.type", "model");
        }
        for (key, value) in &draft.keys {
            value.write(key, &mut out);
        }
        out.alignment(PACKED_ALIGNMENT as u32);
        out.u32("general.file_type", types::file_type(&items, mix));
        if items.iter().any(|item| item.to.is_quantised()) {
            out.u32("general.quantization_version", 2);
        }
        for (key, value) in &draft.tokens.keys {
            value.write(key, &mut out);
        }
        let plan = Plan::new(source, out, items)?;
        let mut about = About::new(&plan, draft.recognised, draft.architecture);
        about.notes.extend(draft.notes);
        about.notes.extend(draft.tokens.notes);
        about.skipped = draft.skipped;
        Ok(Conversion { files, plan, about, small: Vec::new(), folders: Vec::new() })
    }

    /// Returns the summary of the source and of the file to be written.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Checks that the file can be made at `dest`, without making it.
    ///
    /// # Errors
    /// A file exists already, or something else is in the way.
    pub fn check_dest(&self, dest: &Path, options: Options) -> Result<(), ConvertError> {
        self.dest(dest, options).map(drop)
    }

    /// The target of the conversion. Files of a source are never replaced, even if `force` is set.
    fn dest<'p>(&self, dest: &'p Path, options: Options) -> Result<Target<'p>, ConvertError> {
        let target = Target::new(dest, options, self.files.maps(), &self.small)?;
        // For a link, its target counts.
        let real = dest.canonicalize().ok();
        let folder = real.as_deref().and_then(Path::parent);
        let is_source =
            |other: &PathBuf| other.canonicalize().is_ok_and(|other| Some(&*other) == folder);
        let replaces = real.is_some() && format_of(dest) != Some(Format::Gguf);
        match replaces && self.folders.iter().any(is_source) {
            true => Err(ConvertError::SameFile { path: dest.into() }),
            false => Ok(target),
        }
    }

    /// Writes the new file to `dest`, with `threads` compute threads. Progress is in bytes of the new
    /// file.
    ///
    /// # Errors
    /// See [`ConvertError`]. In that case there is no file at `dest`, or still the earlier one.
    pub fn write(
        &self,
        dest: &Path,
        threads: usize,
        options: Options,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Converted, ConvertError> {
        let started = Instant::now();
        let target = self.dest(dest, options)?;
        let (losses, threads) = self.plan.write(&self.files, &target, threads, on_progress)?;
        let (read, written) = (self.about.reads, self.about.writes);
        let took = started.elapsed();
        Ok(Converted { volume: Volume { read, written, took, threads }, losses })
    }
}

/// Opens the files of a GGUF model, whichever of its shards `path` is.
fn gguf_files(path: &Path) -> Result<Files, ConvertError> {
    let files = Files::open(&[path.to_owned()], false)?;
    let others = {
        let first = &files.maps()[0];
        let header = copy(first);
        shards(first, &parse(first, &header)?)?
    };
    let Some(paths) = others else { return Ok(files) };
    // The pages read from the first file are dropped before it is mapped again.
    drop(files);
    Files::open(&paths, false)
}

impl About {
    fn new(plan: &Plan, recognised: String, architecture: String) -> About {
        let mut changes = BTreeMap::new();
        for item in plan.items() {
            let (count, bytes) = changes.entry((item.from.to_string(), item.to)).or_insert((0, 0));
            *count += 1;
            *bytes += item.nbytes();
        }
        let again = |item: &&Item| item.from.block() > 1 && item.to != item.from.current();
        let mut notes = Vec::new();
        let doubles = plan.items().iter().filter(|item| item.loses_range()).count();
        if doubles > 0 {
            notes.push(format!(
                "{doubles} tensors have 64-bit floats and are rounded to 32 bits, which GGUF's readers \
                 compute with"
            ));
        }
        About {
            recognised,
            architecture,
            tensors: plan.items().len(),
            changes,
            rounded_twice: plan.items().iter().filter(again).count(),
            skipped: Vec::new(),
            notes,
            reads: plan.items().iter().map(Item::source_bytes).sum(),
            writes: plan.len,
        }
    }
}
