//! Packed files, written from `docs/reference/packed-layout.md` alone, as far as models are loaded from them.

use std::path::{Path, PathBuf};

use alight_formats::gguf::write::{Builder, New};
use alight_formats::gguf::{TensorInfo, parse};
use alight_kernels::{WeightType, tiles};

/// A tensor as it is added to a new file.
pub fn new<'a>(info: &'a TensorInfo<'_>, packed: bool) -> New<'a> {
    New { name: info.name, ty: info.ty, packed, shape: info.shape() }
}

/// Writes the packed form of a file next to it, with experts interleaved (version 2) or not (version 1).
pub fn packed(path: &Path, version: u32) -> PathBuf {
    let bytes = std::fs::read(path).unwrap();
    let source = parse(&bytes).unwrap();
    let tiled = |info: &TensorInfo<'_>| {
        let (cols, rows) = (info.ne[0] as usize, info.ne[1] as usize);
        let read_by_row = info.name == "token_embd.weight";
        WeightType::of(info.ty)
            .filter(|ty| !read_by_row && info.n_dims > 1 && tiles::packable(*ty, rows, cols))
    };
    let group = |info: &TensorInfo<'_>| -> Option<String> {
        let of_experts = info.name.ends_with("_exps.weight") && version > 1;
        of_experts.then(|| info.name.split('.').nth(1).unwrap().to_owned())
    };
    // Experts of a layer follow one another.
    let mut order: Vec<&TensorInfo<'_>> = source.tensors.iter().collect();
    order.sort_by_key(|info| (group(info).is_some(), group(info)));
    let mut out = Builder::with_alignment(4096);
    for (key, value) in source.metadata.iter().filter(|(key, _)| *key != "general.alignment") {
        out.value(key, value);
    }
    out.str("alight.layout", "tiles16").u32("alight.layout.version", version);
    let (mut runs, mut at) = (Vec::new(), 0_u32);
    for some in order.chunk_by(|a, b| group(a).is_some() && group(a) == group(b)) {
        if some.len() > 1 {
            let some: Vec<_> = some.iter().map(|info| new(info, tiled(info).is_some())).collect();
            out.side_by_side(&some).unwrap();
            runs.extend([at, some.len() as u32]);
        } else {
            out.add(new(some[0], tiled(some[0]).is_some())).unwrap();
        }
        at += some.len() as u32;
    }
    if version > 1 {
        out.u32s("alight.layout.experts", &runs);
    }
    let file = out.file(|index, to| {
        let from = order[index].data(&bytes).unwrap();
        match tiled(order[index]) {
            Some(ty) => tiles::pack(ty, order[index].ne[0] as usize, &from, to),
            None => to.copy_from_slice(&from),
        }
    });
    let to = path.with_extension(format!("packed{version}.gguf"));
    std::fs::write(&to, file).unwrap();
    to
}
