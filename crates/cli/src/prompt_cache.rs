//! The folder of computed prompts: its location, `alight cache`, and notes on unusable files.

use std::ffi::OsString;
use std::fs::Metadata;
use std::path::PathBuf;
use std::time::SystemTime;

use alight_files::folders;
use alight_model::{IgnoredPrompt, PromptFolder};
use anyhow::{Context, anyhow};
use clap::ValueHint;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

use crate::outcome::{Outcome, Stop};
use crate::terminal_text::one_line;
use crate::{output, plain, say, units};

/// Maximum bytes of all prompts together.
const LIMIT: u64 = 16 << 30;

/// The option for the folder of kept prompts.
#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    /// Keep what was computed of the prompt in DIR, and begin with what is there: the next prompt that begins alike is answered
    /// at once, by any process; off: keep nothing [default of DIR: alight/prompts in $XDG_CACHE_HOME, or in ~/.cache]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "on",
          value_hint = ValueHint::DirPath, value_parser = OsStringValueParser::new().map(Keep::of))]
    cache: Option<Keep>,

    /// Keep nothing of the prompt, and use nothing that was kept: the same as --cache=off
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
}

/// The setting for keeping prompts.
#[derive(Clone, Debug)]
enum Keep {
    No,
    /// In the user's folder.
    Yes,
    In(PathBuf),
}

impl Keep {
    /// A word that switches, or a folder: a folder of such a name is given as `./off`.
    fn of(given: OsString) -> Keep {
        match given.to_str().and_then(plain::switch) {
            Some(false) => Keep::No,
            Some(true) => Keep::Yes,
            None => Keep::In(given.into()),
        }
    }
}

impl CacheArgs {
    /// Returns the folder, if prompts are to be kept.
    pub fn folder(&self) -> Outcome<Option<PromptFolder>> {
        match &self.cache {
            _ if self.no_cache => Ok(None),
            None | Some(Keep::No) => Ok(None),
            Some(Keep::Yes) => folder(None).map(Some),
            Some(Keep::In(path)) => folder(Some(path.clone())).map(Some),
        }
    }
}

/// Returns the given folder, or the user's.
pub fn folder(given: Option<PathBuf>) -> Outcome<PromptFolder> {
    let own = || folders::of_user(folders::CACHE).map(|caches| caches.join("prompts"));
    let Some(path) = given.or_else(own) else {
        let why = "neither XDG_CACHE_HOME nor HOME says where prompts are kept: name a folder";
        return Err(Stop::Usage(why.to_owned()));
    };
    Ok(PromptFolder::new(path, LIMIT))
}

/// Prints for each ignored file why it was not used.
pub fn say_ignored(ignored: &[IgnoredPrompt]) {
    for IgnoredPrompt { path, why } in ignored {
        let path = path.display().to_string();
        say::note(&format!("the kept prompt '{}' is not used: {why}", one_line(&path)));
    }
}

/// Arguments of `alight cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight run model.gguf --cache -f long.txt  keeps the prompt for next time
  alight cache list                          what is kept
  alight cache info                          where, how many, how much
  alight cache clear                         removes all of it

Packed files of `run --pack` that could not be kept beside their models are listed and removed with the prompts.

A kept prompt is a file of its own, which all processes map. It holds the conversation: only you may \
read it. What was not used for longest goes when there are more than 16 GiB.")]
pub struct CacheCommandArgs {
    #[command(subcommand)]
    action: Action,
}

/// The action of `alight cache`.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List what is kept, those prompts first that were last used
    List(FolderArgs),
    /// Show where prompts are kept, how many, and how large they are
    Info(FolderArgs),
    /// Remove all that is kept
    Clear(FolderArgs),
}

/// The folder argument.
#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// The folder [default: alight/prompts in $XDG_CACHE_HOME, or in ~/.cache]
    dir: Option<PathBuf>,

    /// Write JSON
    #[arg(long)]
    json: bool,
}

/// A prompt, or a packed file, that is kept.
#[derive(Serialize)]
struct Kept {
    /// `prompt` or `packed`.
    kind: &'static str,
    file: String,
    bytes: u64,
    /// Seconds since it was last used.
    unused_seconds: u64,
    model: Option<String>,
    tokens: Option<usize>,
    /// The reason why it cannot be used.
    error: Option<String>,
}

/// All that is kept.
#[derive(Serialize)]
struct Info {
    folder: String,
    prompts: usize,
    bytes: u64,
    limit: u64,
    /// Packed files of `run --pack` that are not next to their models, and their bytes.
    packed: usize,
    packed_bytes: u64,
}

/// Runs the command.
pub fn main(args: CacheCommandArgs) -> Outcome {
    match args.action {
        Action::List(args) => list(args),
        Action::Info(args) => info(args),
        Action::Clear(args) => clear(args),
    }
}

/// Returns the given folder, which must exist, or the user's, which need not.
fn existing(given: Option<PathBuf>) -> Outcome<PromptFolder> {
    if let Some(path) = given.as_ref().filter(|path| !path.is_dir()) {
        return Err(anyhow!("there is no folder '{}'", path.display()).into());
    }
    folder(given)
}

/// Returns the kept prompts and their folder.
fn kept(dir: Option<PathBuf>) -> Outcome<(PromptFolder, Vec<Kept>)> {
    let folder = existing(dir)?;
    let listed = folder.list().map_err(|e| anyhow!(e))?;
    let now = SystemTime::now();
    let kept = listed.into_iter().map(|listed| {
        let (model, tokens, error) = match listed.prompt {
            Ok((model, tokens)) => (Some(model), Some(tokens.len()), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let unused = now.duration_since(listed.used).unwrap_or_default();
        let name = listed.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Kept {
            kind: "prompt",
            file: name,
            bytes: listed.bytes,
            unused_seconds: unused.as_secs(),
            model,
            tokens,
            error,
        }
    });
    let kept = kept.collect();
    Ok((folder, kept))
}

/// The packed files that are not next to their models. They belong to the user's folder, not to one that is `given`.
struct PackedFiles {
    cache: PathBuf,
    files: Vec<(PathBuf, Metadata)>,
}

impl PackedFiles {
    fn find(given: Option<&PathBuf>) -> Outcome<PackedFiles> {
        let cache = given.is_none().then(folders::packed).flatten();
        let found = cache.as_deref().map(alight_convert::all_packed).transpose();
        let (cache, paths) = (cache.unwrap_or_default(), found.context("the packed files")?);
        let paths = paths.unwrap_or_default();
        // (A file may have been removed meanwhile.)
        let known = |path: PathBuf| path.symlink_metadata().ok().map(|found| (path, found));
        Ok(PackedFiles { cache, files: paths.into_iter().filter_map(known).collect() })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, found)| found.len()).sum()
    }

    fn listed(&self) -> impl Iterator<Item = Kept> {
        self.files.iter().map(|(path, found)| Kept {
            kind: "packed",
            file: path.strip_prefix(&self.cache).unwrap_or(path).to_string_lossy().into_owned(),
            bytes: found.len(),
            unused_seconds: found
                .accessed()
                .ok()
                .and_then(|used| used.elapsed().ok())
                .unwrap_or_default()
                .as_secs(),
            model: None,
            tokens: None,
            error: None,
        })
    }

    /// Removes them, and returns their number and bytes.
    fn clear(&self) -> Outcome<(usize, u64)> {
        for (path, _) in &self.files {
            let removed = alight_convert::remove_packed(&self.cache, path);
            removed.with_context(|| format!("'{}'", path.display()))?;
        }
        Ok((self.files.len(), self.bytes()))
    }
}

fn list(args: FolderArgs) -> Outcome {
    let packed = PackedFiles::find(args.dir.as_ref())?;
    let (folder, mut kept) = kept(args.dir)?;
    kept.extend(packed.listed());
    if kept.is_empty() && !args.json && say::is_terminal() {
        let folder = folder.path().display().to_string();
        say::line(&format!(
            "there is no prompt in {folder}; `alight run --cache` keeps prompts of 64 tokens or more"
        ));
    }
    if args.json {
        return output::json(&kept);
    }
    let mut text = String::new();
    for prompt in &kept {
        let what = match (&prompt.model, prompt.tokens, &prompt.error) {
            _ if prompt.kind == "packed" => format!("packed  {}", one_line(&prompt.file)),
            (Some(model), Some(tokens), _) => format!("{tokens:>7} tokens  {}", one_line(model)),
            (_, _, error) => format!("of no use: {}", error.as_deref().unwrap_or_default()),
        };
        let unused = units::duration(prompt.unused_seconds as f64);
        let bytes = units::bytes(prompt.bytes);
        text += &format!("{bytes:>10}  {unused:>8} ago  {what}\n");
    }
    output::lines(&text)
}

fn info(args: FolderArgs) -> Outcome {
    let packed = PackedFiles::find(args.dir.as_ref())?;
    let (folder, kept) = kept(args.dir)?;
    let info = Info {
        folder: folder.path().display().to_string(),
        prompts: kept.len(),
        bytes: kept.iter().map(|prompt| prompt.bytes).sum(),
        limit: LIMIT,
        packed: packed.files.len(),
        packed_bytes: packed.bytes(),
    };
    if args.json {
        return output::json(&info);
    }
    let (bytes, limit) = (units::bytes(info.bytes), units::bytes(info.limit));
    let Info { folder, prompts, packed, packed_bytes, .. } = info;
    let packed = match packed {
        0 => String::new(),
        n => format!("packed   {}, {}\n", units::so_many(n, "file"), units::bytes(packed_bytes)),
    };
    output::report(format!(
        "folder   {}\nprompts  {prompts}\nsize     {bytes} of at most {limit}\n{packed}",
        one_line(&folder)
    ))
}

fn clear(args: FolderArgs) -> Outcome {
    let packed = PackedFiles::find(args.dir.as_ref())?;
    let folder = existing(args.dir)?;
    let (count, bytes) = folder.clear().map_err(|e| anyhow!(e))?;
    if args.json {
        let (folder, limit) = (folder.path().display().to_string(), LIMIT);
        let (packed, packed_bytes) = packed.clear()?;
        return output::json(&Info { folder, prompts: count, bytes, limit, packed, packed_bytes });
    }
    let prompts = format!("{}, {}", units::so_many(count, "prompt"), units::bytes(bytes));
    let packed = match packed.clear()? {
        (0, _) => String::new(),
        (n, bytes) => {
            format!(", and {}, {}", units::so_many(n, "packed file"), units::bytes(bytes))
        }
    };
    say::line(&format!("removed {prompts}{packed}"));
    Ok(())
}
