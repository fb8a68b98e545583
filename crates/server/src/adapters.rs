//! The LoRA adapters of a served model: their names, files and scales. A file is opened when a request first names it, and forgotten when many others
//! have been used since. Requests that still use it keep it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use alight_model::{Adapter, AdapterSet, Model};
use alight_pages::Stamp;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Maximum number of files that are open. Each is a map and a file of the process.
const MAX_OPEN: usize = 256;
/// Maximum number of adapters of a request.
const MAX_OF_REQUEST: usize = 64;
/// Maximum number of adapters that clients may load.
const MAX_NAMED: usize = 1 << 16;

/// An adapter to serve.
#[derive(Clone, Debug)]
pub struct ServedAdapter {
    /// The name that requests use.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Its scale for requests that name no adapter; 0: only requests that name it have it.
    pub scale: f32,
}

/// An adapter, open or not.
struct Named {
    served: ServedAdapter,
    open: Option<OpenAdapter>,
    /// Stamp and hash of its file when it was last opened: they are kept when it is closed.
    known: Option<(Stamp, [u8; 32])>,
}

/// An adapter that is open.
struct OpenAdapter {
    adapter: Arc<Adapter>,
    /// Distinguishes its file from another one under its name.
    file: Stamp,
    /// When it was last used.
    used: u64,
}

/// The adapters of a served model.
pub(crate) struct Adapters {
    model: &'static Model,
    /// A folder of more of them, each with the name of its file.
    folder: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their numbers in requests.
    all: Vec<Named>,
    /// The numbers of names.
    numbers: BTreeMap<String, usize>,
    clock: u64,
}

/// An adapter, as lists of them show it.
pub(crate) struct ListedAdapter {
    pub(crate) id: usize,
    pub(crate) name: String,
    /// The name of its file.
    pub(crate) file: String,
    pub(crate) scale: f32,
    pub(crate) task_name: String,
    pub(crate) prompt_prefix: String,
}

impl Adapters {
    pub(crate) fn new(
        model: &'static Model,
        served: Vec<ServedAdapter>,
        folder: Option<PathBuf>,
    ) -> Adapters {
        let mut state = State::default();
        served.into_iter().for_each(|served| state.add(served));
        let adapters = Adapters { model, folder, state: Mutex::new(state) };
        adapters.look_into_folder();
        adapters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the files that are in the folder by now. Opens none.
    fn look_into_folder(&self) {
        let Some(folder) = &self.folder else { return };
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let mut state = self.state();
        for path in paths {
            let name = path.file_stem().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| path.extension().is_some_and(|e| e == "gguf")) else {
                continue;
            };
            if !state.numbers.contains_key(name) && state.all.len() < MAX_NAMED {
                state.add(ServedAdapter { name: name.to_owned(), path, scale: 0.0 });
            }
        }
    }

    /// Returns true if there are none, and none can come.
    pub(crate) fn are_none(&self) -> bool {
        self.folder.is_none() && self.state().numbers.is_empty()
    }

    /// Returns true if there is an adapter of this name, which may have come into the folder just now.
    pub(crate) fn has(&self, name: &str) -> bool {
        if self.state().numbers.contains_key(name) {
            return true;
        }
        let file = |folder: &PathBuf| folder.join(format!("{name}.gguf"));
        let plain = !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
        if plain && self.folder.as_ref().map(file).is_some_and(|file| file.is_file()) {
            self.look_into_folder();
        }
        self.state().numbers.contains_key(name)
    }

    /// Returns all of them.
    pub(crate) fn list(&self) -> Vec<ListedAdapter> {
        self.look_into_folder();
        let state = self.state();
        let listed = state.numbers.iter().map(|(name, id)| {
            let Named { served, open, .. } = &state.all[*id];
            let text = |text: fn(&Adapter) -> Option<&str>| {
                let open = open.as_ref().and_then(|open| text(&open.adapter));
                open.unwrap_or_default().to_owned()
            };
            ListedAdapter {
                id: *id,
                name: name.clone(),
                file: file_name(&served.path),
                scale: served.scale,
                task_name: text(Adapter::task_name),
                prompt_prefix: text(Adapter::prompt_prefix),
            }
        });
        let mut all: Vec<_> = listed.collect();
        all.sort_by_key(|adapter| adapter.id);
        all
    }

    /// Opens an adapter by its number, unless it is open and its file is the same.
    fn open(&self, id: usize) -> Result<Arc<Adapter>, Failure> {
        let (path, name, known) = {
            let state = self.state();
            let Named { served, known, .. } = &state.all[id];
            (served.path.clone(), served.name.clone(), *known)
        };
        let failed =
            |why: String| Failure::invalid(format!("the adapter {name:?} cannot be used: {why}"));
        let metadata = std::fs::metadata(&path)
            .map_err(|error| failed(format!("its file cannot be read ({})", error.kind())))?;
        let file = Stamp::from(&metadata);
        {
            let mut state = self.state();
            state.clock += 1;
            let clock = state.clock;
            if let Some(open) = &mut state.all[id].open
                && open.file == file
            {
                open.used = clock;
                return Ok(Arc::clone(&open.adapter));
            }
        }
        // Others are served meanwhile.
        let adapter = self.model.open_adapter_again(&path, known.as_ref()).map_err(|error| {
            // The client knows its name and not its file.
            failed(error.to_string().replace(&*path.to_string_lossy(), &file_name(&path)))
        })?;
        let adapter = Arc::new(adapter);
        let mut state = self.state();
        let used = state.clock;
        state.all[id].known = Some((*adapter.stamp(), *adapter.hash()));
        state.all[id].open = Some(OpenAdapter { adapter: Arc::clone(&adapter), file, used });
        state.forget_rare();
        Ok(adapter)
    }

    /// The adapters of requests that name none.
    ///
    /// # Errors
    /// One cannot be opened.
    pub(crate) fn standing(&self) -> Result<AdapterSet, Failure> {
        let scales: Vec<(usize, f32)> = {
            let state = self.state();
            let all = state.numbers.values().map(|id| (*id, state.all[*id].served.scale));
            all.filter(|(_, scale)| *scale != 0.0).collect()
        };
        self.set(&scales)
    }

    fn set(&self, scales: &[(usize, f32)]) -> Result<AdapterSet, Failure> {
        let used = scales.iter().filter(|(_, scale)| *scale != 0.0);
        let opened = used.map(|(id, scale)| Ok((self.open(*id)?, *scale)));
        Ok(AdapterSet::new(opened.collect::<Result<Vec<_>, Failure>>()?))
    }

    /// Takes the adapters of a request: those of its field `lora`, with the one that its `model` named, if it did.
    ///
    /// # Errors
    /// The field is wrong, or an adapter is unknown or cannot be opened.
    pub(crate) fn take(
        &self,
        named: Option<&str>,
        fields: &mut Fields,
    ) -> Result<AdapterSet, Failure> {
        let listed = fields.list("lora")?.unwrap_or_default();
        let mut scales = self.scales("lora", &listed)?;
        if scales.is_empty() && named.is_none() {
            return self.standing();
        }
        if let Some(name) = named {
            let id = self.number("model", name)?;
            if !scales.iter().any(|(other, _)| *other == id) {
                scales.push((id, 1.0));
            }
        }
        self.set(&scales)
    }

    /// Sets the scales for requests that name no adapter: those that are not in the list become 0.
    ///
    /// # Errors
    /// The list is wrong.
    pub(crate) fn set_standing(&self, list: &[Value]) -> Result<(), Failure> {
        let scales = self.scales("", list)?;
        let mut state = self.state();
        state.all.iter_mut().for_each(|named| named.served.scale = 0.0);
        scales.into_iter().for_each(|(id, scale)| state.all[id].served.scale = scale);
        Ok(())
    }

    /// Reads a list of adapters and their scales.
    fn scales(&self, field: &str, list: &[Value]) -> Result<Vec<(usize, f32)>, Failure> {
        let refused = |why: String| Failure::from(Refusal::invalid(field, why));
        if list.len() > MAX_OF_REQUEST {
            return Err(refused(format!(
                "{} adapters, expected at most {MAX_OF_REQUEST}",
                list.len()
            )));
        }
        let mut scales: Vec<(usize, f32)> = Vec::new();
        for one in list {
            let id = match (&one["id"], &one["name"]) {
                (Value::String(name), Value::Null) | (Value::Null, Value::String(name)) => {
                    self.number(field, name)?
                }
                (Value::Number(id), Value::Null) => {
                    let known = |id: &usize| self.state().numbers.values().any(|other| other == id);
                    let id = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(known);
                    id.ok_or_else(|| refused(format!("there is no adapter {}", one["id"])))?
                }
                _ => {
                    return Err(refused(format!(
                        "{one}, expected {{\"id\" or \"name\", \"scale\"}}"
                    )));
                }
            };
            let scale = match &one["scale"] {
                Value::Null => Some(1.0),
                scale => scale.as_f64().map(|scale| scale as f32).filter(|scale| scale.is_finite()),
            };
            let scale = scale.ok_or_else(|| {
                refused(format!("its scale is {}, expected a finite number", one["scale"]))
            })?;
            if scales.iter().any(|(other, _)| *other == id) {
                return Err(refused(format!("the adapter {id} is in it twice")));
            }
            scales.push((id, scale));
        }
        Ok(scales)
    }

    fn number(&self, field: &str, name: &str) -> Result<usize, Failure> {
        let unknown = || {
            let message =
                format!("there is no adapter {name:?} here; GET /lora-adapters lists them");
            Failure::from(Refusal::invalid(field, message))
        };
        self.has(name)
            .then(|| self.state().numbers.get(name).copied())
            .flatten()
            .ok_or_else(unknown)
    }

    /// Adds an adapter, which can be opened.
    ///
    /// # Errors
    /// It cannot be opened, or its name is taken by another file.
    pub(crate) fn load(&self, name: &str, path: &Path, replace: bool) -> Result<(), Failure> {
        if name.is_empty() || name.len() > 256 || name.chars().any(char::is_control) {
            let why = "expected up to 256 bytes without control characters";
            return Err(Refusal::invalid("lora_name", why).into());
        }
        let id = {
            let mut state = self.state();
            match state.numbers.get(name) {
                Some(_) if !replace => {
                    let why =
                        format!("there is an adapter {name:?} already; load_inplace replaces it");
                    return Err(Refusal::invalid("lora_name", why).into());
                }
                Some(id) => {
                    let id = *id;
                    let before = std::mem::replace(&mut state.all[id].served.path, path.into());
                    let open = state.all[id].open.take();
                    // The file may have been changed in a way that its times do not tell.
                    state.all[id].known = None;
                    drop(state);
                    return self.open(id).map(|_| ()).inspect_err(|_| {
                        let mut state = self.state();
                        state.all[id].served.path = before;
                        state.all[id].open = open;
                    });
                }
                None if state.numbers.len() >= MAX_NAMED => {
                    return Err(Failure::invalid(format!(
                        "there are {MAX_NAMED} adapters already"
                    )));
                }
                None => {
                    state.add(ServedAdapter { name: name.into(), path: path.into(), scale: 0.0 });
                    state.numbers[name]
                }
            }
        };
        self.open(id).map(|_| ()).inspect_err(|_| _ = self.unload(name))
    }

    /// Removes an adapter. Requests that have it keep it. Returns false if there is none of this name.
    pub(crate) fn unload(&self, name: &str) -> bool {
        let mut state = self.state();
        let Some(id) = state.numbers.remove(name) else { return false };
        // Others keep their numbers.
        state.all[id].open = None;
        state.all[id].served.scale = 0.0;
        true
    }
}

impl State {
    fn add(&mut self, served: ServedAdapter) {
        self.numbers.insert(served.name.clone(), self.all.len());
        self.all.push(Named { served, open: None, known: None });
    }

    /// Forgets those that were not used for the longest time, if too many are open.
    fn forget_rare(&mut self) {
        let used = |named: &Named| named.open.as_ref().map(|open| open.used);
        while self.all.iter().filter(|named| named.open.is_some()).count() > MAX_OPEN {
            let open = self.all.iter_mut().filter(|named| named.open.is_some());
            let Some(oldest) = open.min_by_key(|named| used(named)) else { return };
            oldest.open = None;
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl ListedAdapter {
    /// Describes it as llama-server does.
    pub(crate) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "path": self.file,
            "scale": self.scale,
            "task_name": self.task_name,
            "prompt_prefix": self.prompt_prefix,
        })
    }
}
