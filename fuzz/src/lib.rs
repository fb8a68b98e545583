//! Shared by the fuzz targets: what must hold of every file that the GGUF parser accepts, whatever its bytes; the server of requests and
//! bodies.

pub mod bodies;
#[cfg(fuzzing)]
pub mod server;
pub mod tokenizer;

use std::collections::HashSet;

use alight_formats::gguf::write::{Builder, New};
use alight_formats::gguf::{self, Array, FromValue as _, Gguf, TensorInfo, Value, ValueType};
use alight_formats::packed::EXPERTS_KEY;

/// Parses `bytes` and, if that succeeds, checks every promise of the parser. Panics on a broken one.
pub fn parse_and_check(bytes: &[u8]) -> Option<Gguf<'_>> {
    match gguf::parse(bytes) {
        Ok(file) => {
            check(&file, bytes);
            Some(file)
        }
        Err(error) => {
            // Messages are bounded and printable, whatever the file says.
            let text = error.to_string();
            assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
            None
        }
    }
}

fn check(file: &Gguf<'_>, bytes: &[u8]) {
    assert!((1..=3).contains(&file.version));
    assert!(file.alignment.is_power_of_two() && file.alignment >= 8);
    assert!(file.header_len <= bytes.len() as u64);
    assert!(file.data_start.is_multiple_of(file.alignment) && file.data_start >= file.header_len);

    let mut keys = HashSet::new();
    for (key, value) in &file.metadata {
        assert!(!key.is_empty() && keys.insert(*key), "{key:?}");
        let found = file.get(key).expect("every key is found");
        assert_eq!(found.value_type(), value.value_type());
        let _ = (file.get_u32(key), file.get_u64(key), file.get_i64(key), file.get_f32(key));
        let _ = (file.get_bool(key), file.get_str(key), file.get_strings(key));
        let _ = (value.to_string(), format!("{value:?}"));
        if let Value::Array(array) = value {
            check_array(array);
        }
    }

    let mut names = HashSet::new();
    let mut end = file.data_start;
    let mut taken = Vec::new();
    for (index, tensor) in file.tensors.iter().enumerate() {
        assert!(!tensor.name.is_empty() && names.insert(tensor.name));
        assert_eq!(file.tensor_index(tensor.name), Some(index));
        assert!((1..=4).contains(&tensor.n_dims) && tensor.ne.iter().all(|n| *n > 0));
        assert_eq!(tensor.shape().len(), tensor.n_dims as usize);
        // Experts that lie side by side with those of the tensor before begin ahead of its end.
        let beside = tensor.offset < end;
        assert!(beside || tensor.offset == end.next_multiple_of(file.alignment));
        assert!(!beside || tensor.stride.is_some_and(|stride| file.packed && stride % 4096 == 0));
        let rows = tensor.elements() / tensor.ne[0];
        assert_eq!(tensor.row_bytes() * rows, tensor.nbytes);
        if tensor.packed.is_some() {
            assert!(file.packed && tensor.ne[1] % 16 == 0 && (beside || tensor.offset % 4096 == 0));
        }
        let data = tensor.data(bytes).expect("the data lies in the file");
        assert_eq!(data.len() as u64, tensor.nbytes);
        taken.extend(tensor.pieces());
        end = end.max(tensor.range().end as u64);
    }
    assert_eq!(file.data_end, end);
    taken.sort_by_key(|piece| piece.start);
    assert!(taken.windows(2).all(|two| two[0].end <= two[1].start), "no byte is of two tensors");

    // The header written anew means the same.
    let mut writer = match file.get("general.alignment") {
        Some(_) => Builder::with_alignment(file.alignment as u32),
        None => Builder::new(),
    };
    for (key, value) in &file.metadata {
        if *key != "general.alignment" {
            writer.value(key, value);
        }
    }
    let runs = file.get(EXPERTS_KEY).filter(|_| file.tensors.iter().any(|t| t.stride.is_some()));
    let runs = runs.and_then(|runs| Array::from_value(EXPERTS_KEY, runs).ok()?.iter_u32());
    let runs: Vec<u32> = runs.into_iter().flatten().collect();
    let mut at = 0;
    for run in runs.chunks(2).map(|run| run[0] as usize..(run[0] + run[1]) as usize) {
        add(&mut writer, &file.tensors[at..run.start]);
        let some: Vec<_> = file.tensors[run.clone()].iter().map(new).collect();
        writer.side_by_side(&some).expect("good shapes");
        at = run.end;
    }
    add(&mut writer, &file.tensors[at..]);
    // Alignment and shapes are bounded by the file, so this is no larger than some files.
    if file.alignment > 4096 {
        return;
    }
    let copy = writer.file(|index, out| {
        out.copy_from_slice(&file.tensors[index].data(bytes).expect("the data lies in the file"));
    });
    let again = gguf::parse(&copy).expect("what we wrote is in order");
    assert_eq!(again.metadata.len(), file.metadata.len());
    for (key, value) in &file.metadata {
        assert!(same(value, again.get(key).expect("every key was written")), "{key}");
    }
    assert_eq!(again.tensors.len(), file.tensors.len());
    for (a, b) in file.tensors.iter().zip(&again.tensors) {
        assert_eq!((a.name, a.ne, a.type_id(), a.nbytes), (b.name, b.ne, b.type_id(), b.nbytes));
        assert_eq!(a.data(bytes), b.data(&copy));
    }
}

fn new<'a>(tensor: &'a TensorInfo<'_>) -> New<'a> {
    New { name: tensor.name, ty: tensor.ty, packed: tensor.packed, shape: tensor.shape() }
}

fn add(writer: &mut Builder, tensors: &[TensorInfo<'_>]) {
    for tensor in tensors {
        writer.add(new(tensor)).expect("a good shape");
    }
}

fn check_array(array: &Array<'_>) {
    let counts = [
        array.iter_str().map(|items| items.count()),
        array.iter_bool().map(|items| items.count()),
        array.as_u8().map(<[u8]>::len),
        array.iter_i8().map(|items| items.count()),
        array.iter_u16().map(|items| items.count()),
        array.iter_i16().map(|items| items.count()),
        array.iter_u32().map(|items| items.count()),
        array.iter_i32().map(|items| items.count()),
        array.iter_u64().map(|items| items.count()),
        array.iter_i64().map(|items| items.count()),
        array.iter_f32().map(|items| items.count()),
        array.iter_f64().map(|items| items.count()),
    ];
    let found: Vec<usize> = counts.into_iter().flatten().collect();
    assert_eq!(found, [array.len()], "exactly one view, of all elements");
    if let Some(ints) = array.iter_int() {
        assert_eq!(ints.count(), array.len());
    }
    assert_ne!(array.elem_type(), ValueType::Array);
}

/// Equal bit for bit: NaN equals itself, and strings count without the width of their lengths.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(a), Value::Array(b)) => match (a.iter_str(), b.iter_str()) {
            (Some(x), Some(y)) => x.eq(y),
            _ => a.elem_type() == b.elem_type() && a.bytes() == b.bytes(),
        },
        (a, b) => a == b,
    }
}
