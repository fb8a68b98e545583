//! Errors as Python's exceptions.
//!
//! All classes of this package are subclasses of `AlightError`, and of Python's class of the same meaning, if there is one. A file
//! that cannot be opened raises Python's own error for that (`FileNotFoundError` and so on), and so does an argument of a wrong
//! type.

use std::ffi::CString;
use std::io;
use std::path::Path;

use alight_chat::grammar::NoGrammar;
use alight_convert::ConvertError;
use alight_files::FilesError;
use alight_hub::HubError;
use alight_model::{LoadError, ModelError};
use alight_pages::MapError;
use alight_text::PromptError;
use alight_text::prompt::TooLong;
use pyo3::exceptions::{
    PyException, PyMemoryError, PyOSError, PyRuntimeError, PyRuntimeWarning, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// A class of exceptions.
pub struct Class {
    pub name: &'static str,
    doc: &'static str,
    /// Python's class that is a base class as well.
    beside: Option<for<'py> fn(Python<'py>) -> Bound<'py, PyType>>,
    made: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(
        name: &'static str,
        doc: &'static str,
        beside: Option<for<'py> fn(Python<'py>) -> Bound<'py, PyType>>,
    ) -> Class {
        Class { name, doc, beside, made: PyOnceLock::new() }
    }

    /// The class itself, made at its first use.
    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyType>> {
        let made = self.made.get_or_try_init(py, || {
            let mut bases = match self.name {
                "AlightError" => vec![py.get_type::<PyException>()],
                _ => vec![ALIGHT.get(py)?],
            };
            bases.extend(self.beside.map(|beside| beside(py)));
            let members = PyDict::new(py);
            members.set_item("__doc__", self.doc)?;
            members.set_item("__module__", "alight")?;
            let class =
                py.get_type::<PyType>().call1((self.name, PyTuple::new(py, bases)?, members))?;
            Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
        })?;
        Ok(made.bind(py).clone())
    }

    /// An exception of this class.
    pub fn err(&self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(|py| match self.get(py) {
            Ok(class) => PyErr::from_type(class, message),
            Err(error) => error,
        })
    }
}

fn value_error(py: Python<'_>) -> Bound<'_, PyType> {
    py.get_type::<PyValueError>()
}

fn os_error(py: Python<'_>) -> Bound<'_, PyType> {
    py.get_type::<PyOSError>()
}

fn runtime_error(py: Python<'_>) -> Bound<'_, PyType> {
    py.get_type::<PyRuntimeError>()
}

fn memory_error(py: Python<'_>) -> Bound<'_, PyType> {
    py.get_type::<PyMemoryError>()
}

pub static ALIGHT: Class = Class::new("AlightError", "What all errors of this package are.", None);
pub static FORMAT: Class = Class::new(
    "FormatError",
    "A file is not what it should be: damaged, of another format, or of another model.",
    Some(value_error),
);
pub static FILE_CHANGED: Class = Class::new(
    "FileChangedError",
    "A file was cut short, or could not be read, after it had been opened: what was read from it is worthless.",
    Some(os_error),
);
pub static OPTION: Class = Class::new(
    "OptionError",
    "An option has a value that makes no sense, or that this model or this machine does not have.",
    Some(value_error),
);
pub static PROMPT: Class = Class::new(
    "PromptError",
    "A prompt has no tokens: its text is empty, or the model's chat template does not take the conversation.",
    Some(value_error),
);
pub static CONTEXT_FULL: Class = Class::new(
    "ContextFullError",
    "A prompt does not fit into the context. Nothing was computed.",
    Some(value_error),
);
pub static NO_MEMORY: Class = Class::new(
    "NotEnoughMemoryError",
    "A model, or what is computed with it, does not fit into the memory that can be had.",
    Some(memory_error),
);
pub static COMPUTE: Class = Class::new(
    "ComputeError",
    "A step could not be computed, or its numbers are none.",
    Some(runtime_error),
);
pub static CLOSED: Class =
    Class::new("ClosedError", "The model has been closed.", Some(value_error));
pub static HUB: Class = Class::new(
    "HubError",
    "A model of the hub is not in the cache, and could not be fetched or may not be.",
    Some(os_error),
);

/// All classes.
pub static CLASSES: [&Class; 10] = [
    &ALIGHT,
    &FORMAT,
    &FILE_CHANGED,
    &OPTION,
    &PROMPT,
    &CONTEXT_FULL,
    &NO_MEMORY,
    &COMPUTE,
    &CLOSED,
    &HUB,
];

/// A file that cannot be opened raises Python's own error for that (`FileNotFoundError` and so on).
pub fn map(error: MapError) -> PyErr {
    of_map(&error)
}

pub fn of_map(error: &MapError) -> PyErr {
    match error {
        MapError::Open { path, source } => system(path, source),
        MapError::FileShrank { .. } | MapError::Unreadable { .. } => {
            FILE_CHANGED.err(error.to_string())
        }
        MapError::Empty { .. } => FORMAT.err(error.to_string()),
        _ => PyOSError::new_err(error.to_string()),
    }
}

/// Files that do not form a model.
pub fn files(error: FilesError) -> PyErr {
    match error {
        FilesError::Map(error) => map(error),
        error => FORMAT.err(error.to_string()),
    }
}

/// A model of the hub that is not available.
pub fn hub(error: HubError) -> PyErr {
    match error {
        HubError::Name { .. } | HubError::Setting { .. } => OPTION.err(error.to_string()),
        HubError::Cache { path, source } => system(&path, &source),
        error => HUB.err(error.to_string()),
    }
}

/// A model that cannot be packed.
pub fn convert(error: ConvertError) -> PyErr {
    match error {
        ConvertError::Map(error) => map(error),
        ConvertError::Files(error) => files(error),
        ConvertError::Write { path, source } | ConvertError::Read { path, source, .. } => {
            system(&path, &source)
        }
        ConvertError::Replace(_) | ConvertError::NoPlace { .. } => {
            PyOSError::new_err(error.to_string())
        }
        error => FORMAT.err(error.to_string()),
    }
}

/// Warns of what does not prevent a call from succeeding.
pub fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let text = CString::new(text.replace('\0', " "))?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
}

/// A model that the engine rejects.
pub fn model(error: ModelError) -> PyErr {
    of_model(&error)
}

/// A failure of a model; several requests may end with it.
pub fn of_model(error: &ModelError) -> PyErr {
    let class = match error {
        ModelError::Map(error) => return of_map(error),
        ModelError::Load(error) => return load(error),
        ModelError::Options { .. } | ModelError::CacheType { .. } | ModelError::Draft { .. } => {
            &OPTION
        }
        ModelError::ContextFull { .. } => &CONTEXT_FULL,
        ModelError::EmptyInput
        | ModelError::TokenRange { .. }
        | ModelError::Bidirectional { .. }
        | ModelError::NoClassifier { .. }
        | ModelError::TooLongForBatch { .. } => &PROMPT,
        ModelError::Memory(_) => &NO_MEMORY,
        ModelError::NotNumbers { .. } | ModelError::Constraint { .. } => &COMPUTE,
        // The message names the file.
        _ => &FORMAT,
    };
    class.err(match error {
        ModelError::ContextFull { .. } => as_keyword(&error.to_string()),
        error => error.to_string(),
    })
}

/// A prompt that is too long, for any tokenization.
pub fn too_long(problem: &TooLong) -> PyErr {
    CONTEXT_FULL.err(as_keyword(&problem.to_string()))
}

/// A message about a context, with Python's keyword in place of the command's option.
fn as_keyword(problem: &str) -> String {
    problem
        .replace("with -c,", "with context=…,")
        .replace("with -c ", "with context=")
        .replace("larger -c", "larger context=…")
}

/// Weights that could not be loaded.
fn load(error: &LoadError) -> PyErr {
    let class = match error {
        LoadError::Map(error) => return of_map(error),
        LoadError::Transfer(_) | LoadError::Slots(_) => &FILE_CHANGED,
        LoadError::Facts { path, source } => return system(path, source),
        LoadError::Stopped => &COMPUTE,
        _ => &NO_MEMORY,
    };
    class.err(error.to_string())
}

/// A text or a conversation that cannot become a prompt.
pub fn prompt(error: PromptError) -> PyErr {
    match error {
        PromptError::TooLong(problem) => too_long(&problem),
        error => PROMPT.err(error.to_string()),
    }
}

/// A system error about `path`. Python chooses the class by its number.
pub fn system(path: &Path, error: &io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            // Rust's text ends in the number, which Python shows as well.
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((number, text, path.to_path_buf()))
        }
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}

/// A file with invalid contents.
pub fn format(path: &Path, problem: impl std::fmt::Display) -> PyErr {
    FORMAT.err(format!("{}: {problem}", path.display()))
}

/// An answer that cannot be constrained as an option requires.
pub fn no_grammar(option: &str, why: &NoGrammar) -> PyErr {
    let class = if why.is_of_what_was_asked() { &OPTION } else { &COMPUTE };
    class.err(format!("{option}: {why}"))
}
