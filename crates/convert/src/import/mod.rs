//! Models as other programs have them, into one GGUF file.
//!
//! First it is found out what there is ([`find`](self::find)), and the headers are read; then an
//! architecture says what becomes of each tensor, and the tokenizer's files become metadata; then the file
//! is planned, and written by [`crate::write`]. Nothing is written before everything is known to fit.

mod arch;
mod catalog;
mod copies;
mod find;
mod gguf;
mod huggingface;
mod legacy;
mod meta;
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

use crate::dest::Target;
use crate::files::Files;
use crate::imatrix::Imatrix;
use crate::mix::{ModelFacts, QuantizationMix};
use crate::order::execution_order;
use crate::write::{Item, Plan};
use crate::{ConvertError, OnProgress, Options, Volume};
use alight_files::{copy, parse, shards};
use find::Kind;
pub use find::format_of;
use side::{SideFiles, SmallFiles};
use tensor::Entry;
use tokenizer::Tokens;

/// What is to be converted, and into what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'p> {
    /// What the matrices become; `None` for what they are.
    pub mix: Option<QuantizationMix>,
    /// A tokenizer's file or folder, which goes before those of the source.
    pub tokenizer: Option<&'p Path>,
    /// An old file is of the first days of March 2023, which nothing in it tells.
    pub first_days: bool,
    /// What is added to the mean square in norms, where the source does not say.
    pub eps: Option<f32>,
    /// Positions that the model was trained for, where the source does not say.
    pub context: Option<u32>,
}

/// A conversion that is planned.
pub struct Conversion {
    files: Files,
    plan: Plan,
    about: About,
    /// The small files that were read beside the weights, and the folders that they are in.
    small: Vec<Input>,
    folders: Vec<PathBuf>,
}

/// What was found, and what will be written.
#[derive(Clone, Debug)]
pub struct About {
    /// What the source is: "Hugging Face, 3 safetensors files".
    pub recognised: String,
    /// The architecture of the network, as GGUF calls it.
    pub architecture: String,
    /// Number of tensors that will be written.
    pub tensors: usize,
    /// For each pair of types (by name; old blocks have names of their own), how many tensors go from
    /// the one to the other, and the bytes they will have.
    pub changes: BTreeMap<(String, GgmlType), (usize, u64)>,
    /// Tensors that are made of blocks already and become other ones, so that they are rounded twice.
    pub rounded_twice: usize,
    /// Tensors that are left out, with the reason.
    pub skipped: Vec<(String, &'static str)>,
    /// What a person should know: what was guessed, what is missing.
    pub notes: Vec<String>,
    /// Bytes that will be read.
    pub reads: u64,
    /// Bytes that will be written.
    pub writes: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Converted {
    /// Bytes and time.
    pub volume: Volume,
    /// What old blocks lost on the way.
    pub losses: Losses,
}

/// What a reader of a kind of source comes to.
struct Draft {
    recognised: String,
    architecture: String,
    /// Metadata of the network, without `general.architecture` and what depends on types.
    keys: Vec<(String, Entry)>,
    tokens: Tokens,
    /// In any order; the types they become are chosen later.
    items: Vec<Item>,
    skipped: Vec<(String, &'static str)>,
    notes: Vec<String>,
}

impl Conversion {
    /// Plans what becomes of the model at `source`, a folder or one of its files. Only headers and small
    /// files are read.
    ///
    /// # Errors
    /// Nothing is there that can be converted, or it is not in order; see [`ConvertError`].
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
            return Conversion::of_gguf(&found.weights[0], request.mix, None);
        }
        // Before every tensor (ggml), or every record (torch), is a header.
        let files = Files::open(&found.weights, !found.headers_first())?;
        let side = SideFiles::new(&found.folder, request.tokenizer, &small);
        let draft = match found.kind {
            Kind::HuggingFace => huggingface::read(&found, &files, &side)?,
            Kind::Meta => meta::read(&found, &files, &side, request)?,
            Kind::Legacy | Kind::Gguf => legacy::read(&found, &files, &side, request)?,
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

    /// Plans what becomes of a GGUF file: all shards of its model in one, tensors on pages and in the
    /// order of use, and of other types if there is a `mix`, made by an importance matrix if there is one.
    ///
    /// # Errors
    /// It (or the importance matrix) is no GGUF file, or a packed one, or not in order.
    pub fn of_gguf(
        path: &Path,
        mix: Option<QuantizationMix>,
        imatrix: Option<&Path>,
    ) -> Result<Conversion, ConvertError> {
        let imatrix = imatrix.map(Imatrix::open).transpose()?;
        let mut files = Files::open(&[path.to_owned()], false)?;
        let others = {
            let first = &files.maps()[0];
            let header = copy(first);
            shards(first, &parse(first, &header)?)?
        };
        if let Some(paths) = others {
            // What was read of the one has gone again before it is looked at once more.
            drop(files);
            files = Files::open(&paths, false)?;
        }
        gguf::plan(path, files, mix, imatrix)
    }

    /// Settles types and places.
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
        types::choose(&mut draft.items, mix, &facts);
        let names: Vec<&str> = draft.items.iter().map(|item| item.name.as_str()).collect();
        let order = execution_order(&names);
        let items: Vec<Item> = order.into_iter().map(|i| draft.items[i].clone()).collect();
        let mut out = Builder::new();
        out.str("general.architecture", &draft.architecture);
        // Architectures of Hugging Face say it among their own.
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

    /// What was found, and what will be written.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Checks that the file can be made at `dest`, without making it.
    ///
    /// # Errors
    /// There is one already, or something else is in the way.
    pub fn check_dest(&self, dest: &Path, options: Options) -> Result<(), ConvertError> {
        self.dest(dest, options).map(drop)
    }

    /// Where the file is made. What belongs to a source is not replaced, whatever is asked for.
    fn dest<'p>(&self, dest: &'p Path, options: Options) -> Result<Target<'p>, ConvertError> {
        let target = Target::new(dest, options, self.files.maps(), &self.small)?;
        // If it is a link, what counts is where it leads.
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

    /// Writes the new file to `dest`, with `threads` threads that compute. Progress is in bytes of the
    /// new file.
    ///
    /// # Errors
    /// See [`ConvertError`]. There is no file at `dest` then, or the one that was there before.
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
