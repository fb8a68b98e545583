//! Assembles whole tensors from Meta's parts.
//!
//! Matrices that read the residual stream are split by rows (outputs), those that write to it by columns;
//! the embedding by columns in LLaMA 1 and 2 and by rows since. Vectors are in every part. If there are
//! more parts than key/value heads, several parts have the same one.

use std::collections::HashMap;

use alight_formats::ggml::parts::{Split, layer_names, split_of};
use alight_pages::Map;

use super::params::Params;
use crate::ConvertError;
use crate::import::tensor::Tensor;
use crate::write::{Item, ItemData, Piece};

/// Number of bytes compared of repeated tensors, from their start.
const COMPARED: u64 = 64 << 10;

/// The parts, and the known properties of the whole.
pub(super) struct Model<'a> {
    pub(super) maps: &'a [Map],
    pub(super) parts: &'a [HashMap<String, Tensor>],
    pub(super) params: &'a Params,
}

impl Model<'_> {
    fn wrong(&self, part: usize, problem: String) -> ConvertError {
        let path = self.maps.get(part).map(|map| map.path().to_owned()).unwrap_or_default();
        ConvertError::Source { path, problem }
    }

    /// Checks that the number of parts is the one implied by the first part's share of the queries.
    pub(super) fn check_count(&self) -> Result<(), ConvertError> {
        let name = "layers.0.attention.wq.weight";
        let all = self.params.heads * self.params.head_dim;
        let found = self.parts.len() as u64;
        match self.parts[0].get(name).and_then(|tensor| tensor.shape.first()) {
            Some(rows) if *rows > 0 && all.is_multiple_of(*rows) && all / rows != found => {
                let expected = all / rows;
                Err(self.wrong(
                    0,
                    format!(
                        "is one of {expected} parts, of which each has {rows} of the {all} rows of \
                         \"{name}\", but there are {found} parts"
                    ),
                ))
            }
            // Other mismatches are reported when the tensors are assembled.
            _ => Ok(()),
        }
    }

    /// Checks that all parts have the tensors of the first, and no others, and that all of them are
    /// known.
    pub(super) fn check_names(&self, first: &[String]) -> Result<(), ConvertError> {
        for (part, tensors) in self.parts.iter().enumerate() {
            if let Some(missing) = first.iter().find(|name| !tensors.contains_key(*name)) {
                let other = self.maps[0].path().display();
                return Err(self.wrong(part, format!("lacks \"{missing}\", which '{other}' has")));
            }
            let known = &self.parts[0];
            if let Some(extra) = tensors.keys().find(|name| !known.contains_key(*name)) {
                let other = self.maps[0].path().display();
                return Err(self.wrong(part, format!("has \"{extra}\", which '{other}' lacks")));
            }
        }
        let unknown = first.iter().find(|name| split_of(name, 2).is_none());
        match unknown {
            Some(name) => Err(self.wrong(
                0,
                format!("has \"{name}\", which no model of Meta's that is known here has"),
            )),
            None => Ok(()),
        }
    }

    /// Checks that every tensor of every layer is present.
    pub(super) fn check_layers(&self, items: &[Item]) -> Result<(), ConvertError> {
        let layers = self.params.layers;
        let names: std::collections::HashSet<&str> =
            items.iter().map(|item| item.name.as_str()).collect();
        let mut known = 0;
        for name in (0..layers).flat_map(layer_names) {
            if !names.contains(name.as_str()) {
                let problem = format!(
                    "lacks what becomes \"{name}\", although {} says that there are {layers} layers",
                    super::params::FILE
                );
                return Err(self.wrong(0, problem));
            }
            known += 1;
        }
        let outside = ["token_embd.weight", "output_norm.weight", "output.weight"];
        for name in &outside[..2] {
            if !names.contains(name) {
                return Err(self.wrong(0, format!("lacks what becomes \"{name}\"")));
            }
        }
        match items.iter().find(|item| item.name.starts_with("blk.")) {
            Some(_) if items.len() > known + outside.len() => {
                Err(self.wrong(0, format!("has more layers than the {layers} of its parameters")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the whole extents of the tensor `name`, innermost first, and its pieces.
    pub(super) fn whole(&self, name: &str) -> Result<(Vec<u64>, ItemData), ConvertError> {
        let all: Vec<&Tensor> = self.parts.iter().map(|part| &part[name]).collect();
        let first = all[0];
        self.check_alike(name, &all)?;
        let expected = self.shape(name);
        let problem = |expected: &str| {
            let (shape, parts) = (&first.shape, self.parts.len());
            format!(
                "\"{name}\" is {shape:?}, expected {expected} (of {parts} parts, outermost first)"
            )
        };
        let [rows, columns] = match (first.shape.as_slice(), expected) {
            ([n], [_, full]) if *n == full && split_of(name, 1) == Some(Split::Replicated) => {
                self.compare(name, &all, u64::MAX)?;
                return Ok((vec![full], ItemData::whole(0, first.offset, &[full])));
            }
            ([rows, columns], _) => [*rows, *columns],
            _ => return Err(self.wrong(0, problem("another number of dimensions"))),
        };
        let [full_rows, full_columns] = expected;
        let n = self.parts.len() as u64;
        let by_rows = rows.checked_mul(n) == Some(full_rows) && columns == full_columns;
        let by_columns = columns.checked_mul(n) == Some(full_columns) && rows == full_rows;
        let split = match split_of(name, 2) {
            Some(Split::Columns) if name.starts_with("tok_embeddings") && by_rows => Split::Rows,
            Some(split) => split,
            None => Split::Replicated,
        };
        let piece = |part: usize, first_row, first_column| {
            let piece = Piece::new(part, all[part].offset, (rows, columns), first_row);
            Piece { first_column, ..piece }
        };
        let parts = 0..self.parts.len();
        let pieces = match split {
            Split::Columns if by_columns => {
                parts.map(|part| piece(part, 0, part as u64 * columns)).collect()
            }
            Split::Rows if by_rows => {
                parts.map(|part| piece(part, part as u64 * rows, 0)).collect()
            }
            // More parts than heads: each head is repeated.
            Split::Rows
                if columns == full_columns
                    && rows == self.params.head_dim
                    && name.contains(".attention.w")
                    && n.is_multiple_of(self.params.kv_heads)
                    && rows * self.params.kv_heads == full_rows =>
            {
                let times = (n / self.params.kv_heads) as usize;
                for group in all.chunks(times) {
                    self.compare(name, group, COMPARED)?;
                }
                let heads = parts.step_by(times).enumerate();
                heads.map(|(head, part)| piece(part, head as u64 * rows, 0)).collect()
            }
            Split::Columns => {
                let expected = format!("[{full_rows}, {full_columns} / {n}]");
                return Err(self.wrong(0, problem(&expected)));
            }
            _ => {
                let expected = format!("[{full_rows} / {n}, {full_columns}]");
                return Err(self.wrong(0, problem(&expected)));
            }
        };
        Ok((vec![full_columns, full_rows], ItemData::Pieces(pieces)))
    }

    /// Checks that the tensor `name` has the same type and shape in all parts.
    fn check_alike(&self, name: &str, all: &[&Tensor]) -> Result<(), ConvertError> {
        let expected = all[0];
        let other = |found: &Tensor| found.ty != expected.ty || found.shape != expected.shape;
        match all.iter().position(|found| other(found)) {
            None => Ok(()),
            Some(part) => {
                let found = all[part];
                let problem = format!(
                    "\"{name}\" is {} {:?}, expected {} {:?} as in the first part",
                    found.dtype, found.shape, expected.dtype, expected.shape
                );
                Err(self.wrong(part, problem))
            }
        }
    }

    /// Returns rows and columns of the whole tensor.
    fn shape(&self, name: &str) -> [u64; 2] {
        let p = self.params;
        let what = name.strip_suffix(".weight").unwrap_or(name);
        match what.rsplit('.').next() {
            Some("tok_embeddings" | "output") => [p.vocab, p.dim],
            Some("wq") => [p.heads * p.head_dim, p.dim],
            Some("wk" | "wv") => [p.kv_heads * p.head_dim, p.dim],
            Some("wo") => [p.dim, p.heads * p.head_dim],
            Some("w1" | "w3") => [p.hidden, p.dim],
            Some("w2") => [p.dim, p.hidden],
            _ => [1, p.dim],
        }
    }

    /// Checks that repeated tensors are equal in all parts, up to `limit` bytes.
    fn compare(&self, name: &str, tensors: &[&Tensor], limit: u64) -> Result<(), ConvertError> {
        let Some((first, others)) = tensors.split_first() else { return Ok(()) };
        let bytes = |tensor: &Tensor| {
            let elements: u64 = tensor.shape.iter().product();
            // Types that GGUF does not have are refused later.
            let len = tensor.ty.and_then(|ty| ty.row_bytes(elements)).unwrap_or(0).min(limit);
            let range = tensor.offset as usize..(tensor.offset + len) as usize;
            self.maps[tensor.file].bytes().get(range).unwrap_or_default()
        };
        for other in others {
            let same = bytes(first) == bytes(other);
            self.maps[first.file].check()?;
            self.maps[other.file].check()?;
            if !same {
                let expected = self.maps[first.file].path().display();
                let problem = format!(
                    "\"{name}\" differs from the one in '{expected}', and should be the same: the parts are \
                     not of one model, or one of them is damaged"
                );
                return Err(self.wrong(other.file, problem));
            }
        }
        Ok(())
    }
}
