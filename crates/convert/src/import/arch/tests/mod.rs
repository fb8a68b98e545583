//! Helpers shared by the tests of architectures: the configurations in `tests/data/configs`, which
//! `python -m evidence make hf-models` has created.

mod agree;
mod malformed;
mod naming;
mod rules;
mod strange;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::huggingface;
use crate::import::side::{SideFiles, SmallFiles};
use crate::import::tensor::{Described, Entry, Network, Place, Rule};
use crate::write::Change;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs").join(file)
}

/// A folder with a configuration, and the names and shapes of its weights.
struct Case {
    parent: TempDir,
    folder: PathBuf,
    config: Value,
    tensors: Vec<(String, Vec<u64>)>,
}

impl Case {
    /// Returns the case `name` of `evidence make hf-models`, in a folder of that name.
    fn named(name: &str) -> Case {
        let config = fs::read(data(&format!("{name}.json"))).unwrap();
        let tensors = fs::read_to_string(data(&format!("{name}.tensors"))).unwrap();
        let tensor = |line: &str| {
            let mut words = line.split(' ');
            let name = words.next().unwrap().to_owned();
            (name, words.map(|extent| extent.parse().unwrap()).collect())
        };
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join(name);
        fs::create_dir(&folder).unwrap();
        let settings = r#"{"temperature": 0.7, "top_k": 40, "top_p": 0.9, "do_sample": true}"#;
        fs::write(folder.join("generation_config.json"), settings).unwrap();
        let tensors = tensors.lines().map(tensor).collect();
        Case { parent, folder, config: serde_json::from_slice(&config).unwrap(), tensors }
    }

    /// Sets a value of the configuration; `null` is a value too.
    fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Case {
        self.config[key] = value.into();
        self
    }

    /// Removes a value from the configuration.
    fn unset(&mut self, key: &str) -> &mut Case {
        self.config.as_object_mut().unwrap().remove(key).expect("a key that is there");
        self
    }

    /// Changes the shape of a tensor.
    fn reshape(&mut self, name: &str, shape: &[u64]) -> &mut Case {
        let tensor = self.tensors.iter_mut().find(|(known, _)| known == name);
        tensor.expect("a tensor that is there").1 = shape.to_vec();
        self
    }

    fn remove(&mut self, name: &str) -> &mut Case {
        let before = self.tensors.len();
        self.tensors.retain(|(known, _)| known != name);
        assert!(self.tensors.len() < before, "{name}");
        self
    }

    fn clear(&mut self) -> &mut Case {
        self.tensors.clear();
        self
    }

    fn add(&mut self, name: &str, shape: &[u64]) -> &mut Case {
        self.tensors.push((name.into(), shape.to_vec()));
        self
    }

    fn read(&self) -> Result<Network, String> {
        fs::write(self.folder.join("config.json"), self.config.to_string()).unwrap();
        let side = SideFiles::new(&self.folder, None, &SmallFiles::default());
        let described: Vec<_> =
            self.tensors.iter().map(|(name, shape)| Described { name, shape }).collect();
        huggingface(&side, &described).map_err(|error| error.to_string())
    }

    /// Returns the message of the expected error, which names the file.
    #[track_caller]
    fn error(&self) -> String {
        let error = self.read().expect_err("an error");
        assert!(error.contains("config.json: "), "{error}");
        assert!(!error.contains('\n') && error.len() < 1000, "{error}");
        error
    }

    fn network(&self) -> Network {
        self.read().unwrap()
    }
}

impl Network {
    fn key(&self, key: &str) -> Option<&Entry> {
        self.keys.iter().find(|(known, _)| known == key).map(|(_, entry)| entry)
    }

    /// Returns the rule of a source's tensor.
    fn rule(&self, case: &Case, name: &str) -> &Rule {
        &self.rules[case.tensors.iter().position(|(known, _)| known == name).unwrap()]
    }
}

fn taken(name: &str, heads: Option<u64>, add: f32) -> Rule {
    let change = if add == 0.0 { Change::None } else { Change::Add(add) };
    Rule::Take { name: name.into(), heads, change, place: Place::Whole }
}
