//! A model's files as a catalog: metadata, tensors, and their residency in memory.

use std::path::PathBuf;
use std::sync::Arc;

use alight_files::file_name;
use alight_formats::Format;
use alight_formats::safetensors::{self, SafeTensors};
use alight_pages::{Facts, Load, LoadRequest, Map, Prefetch, choose, warm};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyMappingProxy};

use crate::block::Block;
use crate::residency::Residency;
use crate::source::{self, ModelFiles};
use crate::tensor::{Info, Tensor};
use crate::{error, metadata};

/// A model file, or several that are one model, as a catalog.
///
/// The files are mapped, and nothing but their headers has been read. The maps live as long as this
/// object, or anything that shows their bytes.
#[pyclass(frozen, module = "alight")]
pub struct Catalog {
    format: Format,
    files: Arc<[Map]>,
    infos: Vec<Arc<Info>>,
    tensors: PyOnceLock<Py<PyMappingProxy>>,
    metadata: PyOnceLock<Py<PyMappingProxy>>,
}

/// Opens the model that `path` is, holds or belongs to.
#[pyfunction]
pub fn open(py: Python<'_>, path: PathBuf) -> PyResult<Catalog> {
    py.detach(|| {
        let source = source::open(&path)?;
        let infos = match source.format {
            Format::Gguf => of_gguf(&source.files)?,
            _ => of_safetensors(&source)?,
        };
        Ok(Catalog {
            format: source.format,
            files: source.files.into(),
            infos: infos.into_iter().map(Arc::new).collect(),
            tensors: PyOnceLock::new(),
            metadata: PyOnceLock::new(),
        })
    })
}

/// The result of a parser; if the file has shrunk meanwhile, that is reported as the reason for any error.
fn parsed<T, E: std::fmt::Display>(map: &Map, result: Result<T, E>) -> PyResult<T> {
    map.check().map_err(error::map)?;
    result.map_err(|e| error::format(map.path(), e))
}

fn of_gguf(files: &[Map]) -> PyResult<Vec<Info>> {
    let copies = alight_files::copies(files);
    let merged = alight_files::headers(files, &copies).map_err(error::files)?.catalog;
    Ok(merged.tensors.iter().map(|placed| Info::of_gguf(placed.shard, &placed.info)).collect())
}

fn of_safetensors(source: &ModelFiles) -> PyResult<Vec<Info>> {
    let files = &source.files;
    let copies = alight_files::copies(files);
    let headers = files.iter().zip(&copies);
    let headers = headers.map(|(map, copy)| parsed(map, safetensors::parse(copy)));
    let headers = headers.collect::<PyResult<Vec<SafeTensors<'_>>>>()?;
    let names: Vec<String> = files.iter().map(|map| file_name(map.path())).collect();
    let shards: Vec<safetensors::SafeTensorsShard<'_, '_>> = names
        .iter()
        .zip(&headers)
        .map(|(name, file)| safetensors::SafeTensorsShard { name, file })
        .collect();
    let index = source.index.as_ref();
    let named = index.unwrap_or(&files[0]).path();
    let index = index.map(|map| (map, alight_files::copy(map)));
    let index = index.as_ref().map(|(map, copy)| parsed(map, safetensors::parse_index(copy)));
    let index = index.transpose()?;
    let merged =
        safetensors::merge(index.as_ref(), &shards).map_err(|e| error::format(named, e))?;
    Ok(merged
        .tensors
        .iter()
        .map(|placed| Info::of_safetensors(placed.shard, placed.info))
        .collect())
}

impl Catalog {
    /// Its files, if they are GGUF.
    pub fn gguf(&self) -> PyResult<&[Map]> {
        match self.format {
            Format::Gguf => Ok(&self.files),
            other => Err(source::other_format(self.files[0].path(), other)),
        }
    }

    pub fn file(&self, file: usize) -> PyResult<&Map> {
        self.files.get(file).ok_or_else(|| PyIndexError::new_err(format!("no file {file}")))
    }

    fn read_metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.format == Format::Gguf {
            // Of several files, the first contains all of it.
            let map = &self.files[0];
            let copy = alight_files::copy(map);
            let gguf = alight_files::parse(map, &copy).map_err(error::files)?;
            return metadata::gguf(py, &gguf);
        }
        let dict = PyDict::new(py);
        for map in self.files.iter() {
            let copy = alight_files::copy(map);
            for (key, value) in &parsed(map, safetensors::parse(&copy))?.metadata {
                // Each file has its own metadata, mostly with the same contents.
                if !dict.contains(key.as_ref())? {
                    dict.set_item(key.as_ref(), value.as_ref())?;
                }
            }
        }
        Ok(dict)
    }
}

#[pymethods]
impl Catalog {
    /// "gguf" or "safetensors".
    #[getter]
    fn format(&self) -> &'static str {
        if self.format == Format::Gguf { "gguf" } else { "safetensors" }
    }

    /// The files that hold the tensors.
    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|map| map.path().to_owned()).collect()
    }

    /// Keys and values of the header; GGUF's arrays are lists. Read when first asked for.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let made = self.metadata.get_or_try_init(py, || {
            let dict = self.read_metadata(py)?;
            PyResult::Ok(PyMappingProxy::new(py, dict.as_mapping()).unbind())
        })?;
        Ok(made.bind(py).clone())
    }

    /// The tensors by name, file by file in the order of their data.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let made = self.tensors.get_or_try_init(py, || {
            let dict = PyDict::new(py);
            for info in &self.infos {
                let tensor = Tensor { files: self.files.clone(), info: info.clone() };
                dict.set_item(&info.name, Bound::new(py, tensor)?)?;
            }
            PyResult::Ok(PyMappingProxy::new(py, dict.as_mapping()).unbind())
        })?;
        Ok(made.bind(py).clone())
    }

    /// Bytes of all tensors.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.infos.iter().map(|info| info.nbytes).fold(0, u64::saturating_add)
    }

    /// How much of all files is in the page cache now.
    fn residency(&self, py: Python<'_>) -> PyResult<Residency> {
        py.detach(|| {
            let mut all = Residency { nbytes: 0, cached: 0, source: "cachestat" };
            for map in self.files.iter() {
                let one = Residency::of(map, 0, map.len() as u64)?;
                all.nbytes += one.nbytes;
                all.cached += one.cached;
                all.source = one.source;
            }
            Ok(all)
        })
    }

    /// Raises `FileChangedError` if a file has been cut short since, or could not be read: then what
    /// was read from it is worthless. Arrays over the map show zeros where bytes are gone.
    fn check(&self) -> PyResult<()> {
        self.files.iter().try_for_each(|map| map.check().map_err(error::map))
    }

    /// How a file is best brought into memory now: threads that read it (0: it is there), and why.
    fn _prefetch(&self, py: Python<'_>, file: usize, weights: u64) -> PyResult<(usize, String)> {
        let map = self.file(file)?;
        py.detach(|| {
            let facts = Facts::of(map.file()).map_err(|e| error::system(map.path(), &e))?;
            let choice = choose(&facts, &LoadRequest { load: Load::Mmap, copied: false, weights });
            let threads = match choice.prefetch {
                Prefetch::ReadThreads(threads) => threads,
                Prefetch::Populate | Prefetch::None => 0,
            };
            Ok((threads, choice.reason))
        })
    }

    /// All bytes of a file, in place.
    fn _whole(&self, file: usize) -> PyResult<Block> {
        let map = self.file(file)?;
        let length = map.len();
        let block = Block::mapped(Arc::clone(&self.files), file, 0, length, vec![length as u64]);
        block.ok_or_else(|| error::format(map.path(), "is not as long as its map"))
    }

    /// Brings bytes `start` to `stop` of a file into memory and into the page table, reading them
    /// first if `read` says that they are on the disk.
    fn _fetch(
        &self,
        py: Python<'_>,
        file: usize,
        start: u64,
        stop: u64,
        read: bool,
    ) -> PyResult<()> {
        let map = self.file(file)?;
        py.detach(|| {
            if read {
                warm(map.file(), start..stop).map_err(|e| error::system(map.path(), &e))?;
            }
            let bytes = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            map.populate(bytes(start)..bytes(stop)).map_err(error::map)
        })
    }

    fn __len__(&self) -> usize {
        self.infos.len()
    }

    fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.tensors(py)?.contains(name)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tensors(py)?.as_any().try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.tensors(py)?.get_item(name).map_err(|_| {
            let first = self.files[0].path().display();
            PyKeyError::new_err(format!("{first}: no tensor '{name}'"))
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        let first = self.files.first().ok_or_else(|| PyOSError::new_err("no file"))?;
        let more = match self.files.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let (path, count) = (first.path().display(), self.infos.len());
        Ok(format!("<alight.Catalog of {path}{more}: {count} tensors, {} bytes>", self.nbytes()))
    }
}
