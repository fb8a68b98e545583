//! Packed files, written from `docs/reference/packed-layout.md` alone, as far as models are loaded from them.

use std::path::{Path, PathBuf};

use alight_formats::gguf::write::{Builder, New};
use alight_formats::gguf::{TensorInfo, parse};
use alight_formats::packed::Packing;
use alight_kernels::{Layout, WeightType, planes, tiles};

/// A tensor as it is added to a new file.
pub fn new<'a>(info: &'a TensorInfo<'_>, packed: Option<Packing>) -> New<'a> {
    New { name: info.name, ty: info.ty, packed, shape: info.shape() }
}

/// Writes the packed form of a file next to it, with experts interleaved (from version 2 on) or not (version 1), and with the output matrix in planes
/// (version 3) if its type has them.
pub fn packed(path: &Path, version: u32) -> PathBuf {
    let bytes = std::fs::read(path).unwrap();
    let source = parse(&bytes).unwrap();
    let tied = source.tensor("output.weight").is_none();
    let output = if tied { "token_embd.weight" } else { "output.weight" };
    let tiled = |info: &TensorInfo<'_>| {
        let (cols, rows) = (info.ne[0] as usize, info.ne[1] as usize);
        let ty = WeightType::of(info.ty)?;
        if version > 2 && info.name == output && planes::has_planes_for(ty, rows, cols) {
            return Some((ty, Packing::Planes));
        }
        let read_by_row = info.name == "token_embd.weight";
        let packs = !read_by_row && info.n_dims > 1 && tiles::packable(ty, rows, cols);
        packs.then_some((ty, Packing::Tiles))
    };
    let packing = |info: &TensorInfo<'_>| tiled(info).map(|(_, packing)| packing);
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
            let some: Vec<_> = some.iter().map(|info| new(info, packing(info))).collect();
            out.side_by_side(&some).unwrap();
            runs.extend([at, some.len() as u32]);
        } else {
            out.add(new(some[0], packing(some[0]))).unwrap();
        }
        at += some.len() as u32;
    }
    if !runs.is_empty() {
        out.u32s("alight.layout.experts", &runs);
    }
    let file = out.file(|index, to| {
        let from = order[index].data(&bytes).unwrap();
        match tiled(order[index]) {
            Some((ty, packing)) => {
                Layout::from(Some(packing)).pack(ty, order[index].ne[0] as usize, &from, to);
            }
            None => to.copy_from_slice(&from),
        }
    });
    let to = path.with_extension(format!("packed{version}.gguf"));
    std::fs::write(&to, file).unwrap();
    to
}
