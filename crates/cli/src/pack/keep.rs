//! `--pack`: a packed file that is made once, kept, and used from then on.

use std::path::{Path, PathBuf};

use alight_convert::{PackedOnce, pack_once};
use alight_files::folders;

use crate::conversion::{speed, with_progress};
use crate::outcome::{Outcome, Stop, chain};
use crate::{inspect, say, source};

/// The option to keep a packed file.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct KeepArgs {
    /// Pack the model once, beside it or in alight/packed in $XDG_CACHE_HOME or ~/.cache, and use the packed file from then on: as
    /// large as the model, the same bits, faster
    #[arg(long)]
    pack: bool,
}

impl KeepArgs {
    /// Returns true if a packed file is to be kept.
    pub fn is_on(self) -> bool {
        self.pack
    }

    /// Returns the file to run: the model, or its packed file. If that cannot be kept, it is the model, and a note is printed.
    pub fn file(self, model: &Path) -> Outcome<PathBuf> {
        if !self.pack {
            return Ok(model.to_owned());
        }
        let (shards, is_packed) = inspect::shards_and_layout(model)?;
        if is_packed {
            return Ok(model.to_owned());
        }
        let cache = folders::packed();
        let packed = with_progress("packing", |on_progress| {
            pack_once(model, &shards, cache.as_deref(), on_progress)
        });
        match packed {
            Ok(packed) => Ok(reported(packed)),
            Err(Stop::Failed(why)) => {
                let why = chain(&source::explain(model, why));
                say::note(&format!("the model is used as it is: packing failed: {why}"));
                Ok(model.to_owned())
            }
            Err(stop) => Err(stop),
        }
    }
}

/// Prints how a packed file came about, and returns its path.
fn reported(packed: PackedOnce) -> PathBuf {
    if let Some(left) = &packed.left_alone {
        say::note(&format!(
            "'{}' was not made of the model as it is now, and is left alone",
            left.display()
        ));
    }
    if let Some(volume) = &packed.made {
        say::note(&format!(
            "packed once into '{}': {}; it is used from now on, and may be deleted",
            packed.path.display(),
            speed(volume)
        ));
    }
    packed.path
}
