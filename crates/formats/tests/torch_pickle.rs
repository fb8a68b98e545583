//! Class 13 of the list of malformed inputs, pickles: every lie has its own error, nothing is
//! executed, and no bomb goes off.

use alight_formats::torch::{PickleError as P, Scalar, TorchDtype, TorchError as E, pickle};

use crate::support::refused::table;
use crate::support::torch_check::{fails, measured};
use crate::support::torch_files::*;

/// A file with the pickle that `build` writes after PROTO; `build` writes STOP, too.
fn pickled(build: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut pickle = Pickle::new();
    build(&mut pickle);
    file(&pickle.bytes)
}

/// A file with this tensor, "t", in its dictionary.
fn tensor(tensor: Tensor<'_>) -> Vec<u8> {
    file(&dict_of(&tensor))
}

/// A file whose tensor "t" is what `function` of these arguments returns.
fn rebuilt(module: &str, function: &str, args: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    pickled(|p| {
        p.put(b"}").text("t").global(module, function).put(b"(");
        args(p);
        p.put(b"tRs.");
    })
}

#[test]
fn a_model_is_read_as_it_was_written() {
    let bytes = model();
    let file = measured(&bytes).unwrap();
    let names: Vec<&str> = file.tensors.iter().map(|tensor| &*tensor.name).collect();
    let expected =
        ["embed.weight", "tied.weight", "last", "scalar", "param"].map(|n| format!("model.{n}"));
    assert_eq!(names[..5], expected);
    assert_eq!(names[5..], ["many.0"]);
    let data: Vec<u8> = (0..24).collect();
    let get = |name: &str| file.tensor(name).unwrap();
    for name in ["model.embed.weight", "model.tied.weight", "model.param", "many.0"] {
        assert_eq!(get(name).data(&bytes), Some(&data[..]), "{name}");
        assert_eq!((get(name).dtype, &*get(name).shape), (TorchDtype::F32, &[2, 3][..]));
        assert_eq!(get(name).storage, get("model.embed.weight").storage, "bytes are shared");
    }
    assert_eq!(get("model.last").data(&bytes), Some(&data[20..]));
    let scalar = get("model.scalar");
    assert_eq!((scalar.dtype, scalar.shape.len(), scalar.elements()), (TorchDtype::I64, 0, 1));
    assert_eq!(scalar.data(&bytes), Some(&[0xab; 8][..]));
    let scalars: Vec<_> = file.scalars.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(
        scalars,
        [
            ("epoch", Scalar::Int(-3)),
            ("rate", Scalar::Float(0.5)),
            ("name", Scalar::Str("ü")),
            ("none", Scalar::None)
        ]
    );
}

#[test]
fn every_type_of_storage_is_read() {
    let classes = [
        ("HalfStorage", 2, TorchDtype::F16),
        ("BFloat16Storage", 2, TorchDtype::BF16),
        ("FloatStorage", 4, TorchDtype::F32),
        ("DoubleStorage", 8, TorchDtype::F64),
        ("IntStorage", 4, TorchDtype::I32),
        ("LongStorage", 8, TorchDtype::I64),
        ("ShortStorage", 2, TorchDtype::I16),
        ("CharStorage", 1, TorchDtype::I8),
        ("ByteStorage", 1, TorchDtype::U8),
        ("BoolStorage", 1, TorchDtype::Bool),
        ("UntypedStorage", 1, TorchDtype::U8),
    ];
    for (class, size, dtype) in classes {
        let n = 24 / size;
        let bytes =
            tensor(Tensor { class, key: "0", numel: n, at: 1, size: &[2, 1], stride: &[1, 9] });
        let file = measured(&bytes).unwrap();
        let found = &file.tensors[0];
        assert_eq!((found.dtype, found.nbytes), (dtype, 2 * dtype.bytes()), "{class}");
        let first: Vec<u8> = (size as u8..3 * size as u8).collect();
        assert_eq!(found.data(&bytes), Some(&first[..]), "{class}");
    }
    // Version 3 says the type itself, over bytes.
    for dtype in TorchDtype::ALL {
        let bytes = rebuilt("torch._utils", "_rebuild_tensor_v3", |p| {
            p.storage("UntypedStorage", "0", 24).args(1, &[2], &[1]).global("torch", dtype.name());
        });
        let file = measured(&bytes).unwrap();
        assert_eq!((file.tensors[0].dtype, file.tensors[0].nbytes), (*dtype, 2 * dtype.bytes()));
    }
}

#[test]
fn the_ways_in_which_tensors_are_wrapped() {
    let typed = rebuilt("torch._tensor", "_rebuild_from_type_v2", |p| {
        p.global("torch._utils", "_rebuild_tensor_v2").global("torch", "Tensor").put(b"(");
        p.storage("FloatStorage", "0", 6).args(0, &[6], &[1]).put(b"t}X\x01\0\0\0aK\x01s");
    });
    let parameter = rebuilt("torch._tensor", "_rebuild_from_type_v2", |p| {
        p.global("torch._utils", "_rebuild_parameter").global("torch.nn.parameter", "Parameter");
        p.put(b"(").tensor(&PLAIN).put(b"\x88").hooks().put(b"tN");
    });
    let with_metadata = rebuilt("torch._utils", "_rebuild_tensor_v2", |p| {
        p.storage("FloatStorage", "0", 6).args(0, &[6], &[1]).put(b"}");
    });
    let newobj = pickled(|p| {
        p.global("collections", "OrderedDict").put(b")\x81").text("t").tensor(&PLAIN).put(b"s.");
    });
    let framed = {
        let inner = dict_of(&PLAIN)[2..].to_vec();
        file(&[b"\x80\x05\x95", &(inner.len() as u64).to_le_bytes()[..], &inner].concat())
    };
    for bytes in [typed, parameter, with_metadata, newobj, framed] {
        assert_eq!(measured(&bytes).unwrap().tensor("t").unwrap().nbytes, 24);
    }
}

#[test]
fn class_13_globals_are_refused_by_name_and_nothing_is_executed() {
    let call = |module: &str, name: &str| {
        pickled(|p| {
            p.put(b"}").text("t").global(module, name).put(b"(").text("touch /tmp/x").put(b"tRs.");
        })
    };
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch", "ComplexFloatStorage"),
        ("torch", "QInt8Storage"),
        ("torch", "complex64"),
        ("torch._utils", "_rebuild_tensor"),
        ("torch._utils", "_rebuild_qtensor"),
        ("torch._utils", "_rebuild_sparse_tensor"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage"),
        ("torch._utils.os", "system"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.serialization", "load"),
        ("collections", "OrderedDict.fromkeys"),
        ("__main__", "Net"),
        ("", ""),
    ] {
        let dotted = format!("\"{module}.{name}\"");
        table! { name, call(module, name), E::Pickle(P::Global { .. }), [&dotted, "nothing was executed", "state_dict"]; }
    }
    table! {
        "terminal escape", call("\x1b[2J", "x"), E::Pickle(P::Global { .. }), ["\\u{1b}[2J"];
        "long name", call(&"m".repeat(300), "x"), E::Pickle(P::Limit { limit: pickle::MAX_GLOBAL, .. }), ["256"];
        "not UTF-8", pickled(|p| { p.put(b"c\xff\nx\n."); }), E::Pickle(P::NotUtf8 { .. }), ["\\xff"];
        // What may be looked up may not be called for that.
        "a class is called", call("torch", "Tensor"), E::Pickle(P::Operand { .. }), ["REDUCE", "a global"];
        "a storage is called", call("torch", "FloatStorage"), E::Pickle(P::Operand { .. }), [];
        "a dtype is called", call("torch", "float32"), E::Pickle(P::Operand { .. }), [];
        "the dictionary with an argument", call("collections", "OrderedDict"), E::Pickle(P::Operand { expected: "no argument", .. }), ["text"];
        "text is called", pickled(|p| { p.text("f").put(b")R."); }), E::Pickle(P::Operand { .. }), ["text"];
        "a class is instantiated", pickled(|p| { p.global("torch", "Tensor").put(b")\x81."); }), E::Pickle(P::Operand { .. }), ["NEWOBJ"];
        "a tensor gets state", pickled(|p| { p.tensor(&PLAIN).put(b"}b."); }), E::Pickle(P::Operand { .. }), ["BUILD", "a tensor"];
        "a whole function in the type's place", rebuilt("torch._tensor", "_rebuild_from_type_v2", |p| {
            p.global("torch._tensor", "_rebuild_from_type_v2").global("torch", "Tensor").put(b")}");
        }), E::Pickle(P::Operand { .. }), [];
    }
}

#[test]
fn class_13_opcodes() {
    const ACCEPTED: &[u8] = b"(.JKMNQRUXabc}e]hjqrst)uG\x80\x81\x85\x86\x87\x88\x89\x8a\x8f\x95";
    for code in 0..=255_u8 {
        if ACCEPTED.contains(&code) {
            continue;
        }
        let bytes = pickled(|p| {
            p.put([code]).put([b'1', b'\n', 0, 0, 0, 0, 0, 0, 0, b'\n', b'.']);
        });
        let hex = format!("0x{code:02x}");
        table! { "opcode", bytes, E::Pickle(P::Opcode { code: found, at: 2, .. }) if *found == code, [&hex, "refused"]; }
    }
    for (code, name) in [
        (b'i', "INST"),
        (b'o', "OBJ"),
        (0x93, "STACK_GLOBAL"),
        (0x94, "MEMOIZE"),
        (b'B', "BINBYTES"),
        (0x82, "EXT1"),
        (0xff, "does not exist"),
    ] {
        table! { "named", pickled(|p| { p.put([code]); }), E::Pickle(P::Opcode { .. }), [name]; }
    }
    let raw = |bytes: &[u8]| file(&[b"\x80\x02", bytes].concat());
    table! {
        "empty", file(b""), E::Pickle(P::NoStop), ["STOP"];
        "no STOP", raw(b"}"), E::Pickle(P::NoStop), ["STOP"];
        "STOP on nothing", raw(b"."), E::Pickle(P::StackAtStop { found: 0, .. }), ["0 values"];
        "STOP on two", raw(b"NN."), E::Pickle(P::StackAtStop { found: 2, .. }), ["2 values"];
        "STOP with a mark", raw(b"(N."), E::Pickle(P::StackAtStop { .. }), [];
        "after STOP", raw(b"}.N"), E::Pickle(P::AfterStop { left: 1 }), ["1 bytes"];
        "protocol 1", file(b"\x80\x01}."), E::Pickle(P::Protocol { found: 1 }), ["1"];
        "protocol 6", file(b"\x80\x06}."), E::Pickle(P::Protocol { found: 6 }), ["6"];
        "frame past the end", raw(b"\x95\x03\0\0\0\0\0\0\0}."), E::Pickle(P::Truncated { .. }), ["FRAME"];
        "frame of 2^64-1", raw(b"\x95\xff\xff\xff\xff\xff\xff\xff\xff}."), E::Pickle(P::Truncated { .. }), [];
        "text past the end", raw(b"X\x02\0\0\0."), E::Pickle(P::Truncated { what: "BINUNICODE", at: 2 }), ["BINUNICODE"];
        "text of 2^32-1", raw(b"X\xff\xff\xff\xff."), E::Pickle(P::Truncated { .. }), [];
        "text not UTF-8", raw(b"X\x01\0\0\0\xff."), E::Pickle(P::NotUtf8 { .. }), ["\\xff"];
        "short text not UTF-8", raw(b"U\x01\xff."), E::Pickle(P::NotUtf8 { .. }), [];
        "global without a newline", raw(b"ctorch"), E::Pickle(P::Truncated { what: "GLOBAL", .. }), ["GLOBAL"];
        "integer of 65 bytes", raw(&[&b"\x8a\x41"[..], &[0; 65], b"."].concat()), E::Pickle(P::LongInteger { bytes: 65, .. }), ["65"];
        "memo never put", raw(b"h\x07."), E::Pickle(P::NoMemo { index: 7, .. }), ["7"];
        "memo 2^32-1 never put", raw(b"j\xff\xff\xff\xff."), E::Pickle(P::NoMemo { .. }), ["4294967295"];
        "memo of nothing", raw(b"q\0."), E::Pickle(P::Underflow { .. }), ["BINPUT"];
        "tuple without a mark", raw(b"Nt."), E::Pickle(P::Underflow { .. }), ["TUPLE"];
        "tuple of 3 of 2", raw(b"NN\x87."), E::Pickle(P::Underflow { .. }), ["TUPLE3"];
        "tuple across a mark", raw(b"N(N\x86."), E::Pickle(P::Underflow { .. }), ["TUPLE2"];
        "append without a value", raw(b"]a."), E::Pickle(P::Underflow { .. }), ["APPEND"];
        "append to a tuple", raw(b")Na."), E::Pickle(P::Operand { .. }), ["a tuple", "a list"];
        "appends to nothing", raw(b"(Ne."), E::Pickle(P::Underflow { .. }), [];
        "appends to a dictionary", raw(b"}(Ne."), E::Pickle(P::Operand { .. }), [];
        "item without a value", raw(b"}Ns."), E::Pickle(P::Underflow { .. }), ["SETITEM"];
        "item of a list", raw(b"]NNs."), E::Pickle(P::Operand { .. }), ["a dictionary"];
        "odd items", raw(b"}(NNNu."), E::Pickle(P::Underflow { .. }), ["SETITEMS"];
        "reduce without arguments", raw(b"ccollections\nOrderedDict\nR."), E::Pickle(P::Underflow { .. }), ["REDUCE"];
        "reduce with a list", raw(b"ccollections\nOrderedDict\n]R."), E::Pickle(P::Operand { .. }), ["a list"];
        "a persistent id that is text", raw(b"Nq\0U\x01aQ."), E::Pickle(P::Operand { .. }), ["BINPERSID"];
        "the whole is a list", raw(b"]."), E::NotADict { found: "a list" }, ["a list", "state_dict"];
        "the whole is a tensor", pickled(|p| { p.tensor(&PLAIN).put(b"."); }), E::NotADict { .. }, ["a tensor"];
    }
    // Integers of any width are numbers of their value.
    for (bytes, value) in [
        (&b"\x8a\0"[..], 0_i64),
        (b"\x8a\x01\xff", -1),
        (b"\x8a\x02\xff\0", 255),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", i64::MAX),
        (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff", -1),
    ] {
        let bytes = raw(&[b"}U\x01n", bytes, b"s."].concat());
        assert_eq!(measured(&bytes).unwrap().scalars, [("n".into(), Scalar::Int(value))]);
    }
    // One that does not fit is no value of ours, and no reason to refuse the rest.
    let bytes = raw(b"}U\x01n\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0s.");
    assert_eq!(measured(&bytes).unwrap().scalars, []);
}

#[test]
fn class_13_bombs() {
    let nested = |open: &[u8], close: &[u8], n: usize| {
        pickled(|p| {
            p.put(b"}").text("x").put(open.repeat(n)).put(b"N").put(close.repeat(n)).put(b"s.");
        })
    };
    let wide = |item: &[u8], n: usize| {
        pickled(|p| {
            p.put(b"}").text("x").put(b"](").put(item.repeat(n)).put(b"es.");
        })
    };
    table! {
        "laughing dictionaries", laughing(30), E::TooManyNames { .. }, ["again and again"];
        "deep lists", nested(b"]", b"a", 100_000), E::TooDeep { .. }, ["nested deeper than 32"];
        "deep tuples", nested(b"", b"\x85", 1_000_000), E::TooDeep { .. }, ["\"x"];
        "deep dictionaries", nested(b"}U\x01a", b"s", 100_000), E::TooDeep { .. }, ["\"x.a.a"];
        "deep marks", nested(b"(", b"t", 100_000), E::Pickle(P::Limit { what: "marks", .. }), ["256"];
        "a high stack", wide(b"N", 2_000_000), E::Pickle(P::Limit { what: "values on the stack", .. }), ["1048576"];
        "a list of itself", pickled(|p| { p.put(b"}").text("x").put(b"]q\0h\0as."); }), E::Recursive { .. }, ["\"x.0\"", "itself"];
        "a dictionary of itself", pickled(|p| { p.put(b"}q\0").text("x").put(b"h\0s."); }), E::Recursive { .. }, ["\"x\""];
        "a dictionary of one that has it", pickled(|p| { p.put(b"}q\0").text("x").put(b"}").text("y").put(b"h\0ss."); }), E::Recursive { .. }, ["\"x.y\""];
        "a dictionary whose state it is", pickled(|p| { p.put(b"}q\0").text("x").put(b"]h\0h\0bas."); }), E::Recursive { .. }, [];
        "too many opcodes", pickled(|p| { p.put(b"]").put(b"Na".repeat(pickle::MAX_STEPS / 2)).put(b"."); }), E::Pickle(P::Limit { what: "opcodes", .. }), ["8388608"];
    }
    // A memo of far numbers is as small as any.
    let far = pickled(|p| {
        p.put(b"}");
        for index in 0..1000_u32 {
            p.put(b"r").put((u32::MAX - index).to_le_bytes());
        }
        p.text("t").tensor(&PLAIN).put(b"s.");
    });
    measured(&far).unwrap();
    // Dense content is in proportion: containers of a byte each.
    for item in [&b"}"[..], b"]", b")", b"\x8f", b"N", b"]q\0", b"]r\0\0\0\0"] {
        assert!(measured(&wide(item, 300_000)).unwrap().tensors.is_empty());
    }
}

/// Dictionaries in one another, each with the next under two keys: 2^depth names of one tensor.
fn laughing(depth: u8) -> Vec<u8> {
    pickled(|p| {
        for _ in 0..depth {
            p.put(b"}").text("a");
        }
        p.put(b"}").text("t").tensor(&PLAIN).put(b"s");
        for memo in 0..depth {
            p.put([b'q', memo]).put(b"s").text("b").put([b'h', memo]).put(b"s");
        }
        p.put(b".");
    })
}

#[test]
fn class_13_tensors_and_storages() {
    let of = |numel: i64, at: i64, size: &[i64], stride: &[i64]| {
        tensor(Tensor { class: "FloatStorage", key: "0", numel, at, size, stride })
    };
    let v2 = |args: fn(&mut Pickle)| rebuilt("torch._utils", "_rebuild_tensor_v2", args);
    const MAX: i64 = i64::MAX;
    table! {
        "transposed", of(6, 0, &[3, 2], &[1, 3]), E::Strides { .. }, ["\"t\"", "[1, 3]", "[3, 2]", "contiguous"];
        "expanded", of(6, 0, &[2, 3], &[0, 1]), E::Strides { .. }, ["[0, 1]"];
        "overlapping", of(6, 0, &[2, 3], &[2, 1]), E::Strides { .. }, [];
        "gaps", of(6, 0, &[2, 2], &[3, 1]), E::Strides { .. }, [];
        "every other", of(6, 0, &[3], &[2]), E::Strides { .. }, [];
        "negative stride", of(6, 5, &[6], &[-1]), E::Pickle(P::Number { number: -1, .. }), ["-1", "a stride"];
        "negative size", of(6, 0, &[-2, -3], &[3, 1]), E::Pickle(P::Number { number: -2, .. }), ["a size"];
        "negative offset", of(6, -1, &[6], &[1]), E::Pickle(P::Number { number: -1, .. }), ["begins"];
        "negative numel", of(-6, 0, &[6], &[1]), E::Pickle(P::Number { number: -6, .. }), ["elements"];
        "an element past the end", of(6, 1, &[6], &[1]), E::PastStorage { start: 4, nbytes: 24, storage: 24, .. }, ["\"t\"", "\"0\"", "24"];
        "a row too many", of(6, 0, &[3, 3], &[3, 1]), E::PastStorage { nbytes: 36, .. }, ["36"];
        "offset past the end", of(6, 7, &[], &[]), E::PastStorage { start: 28, .. }, [];
        "an empty tensor past the end", of(6, 7, &[0], &[1]), E::PastStorage { start: 28, nbytes: 0, .. }, [];
        "offset 2^63-1", of(6, MAX, &[1], &[1]), E::PastStorage { .. }, [];
        "size 2^63-1", of(6, 0, &[MAX], &[1]), E::ShapeOverflow { .. }, ["[9223372036854775807]"];
        "size 2^62, bytes wrap", of(6, 0, &[1 << 62], &[1]), E::ShapeOverflow { .. }, [];
        "product wraps to 0", of(6, 0, &[1 << 32, 1 << 32], &[1 << 32, 1]), E::ShapeOverflow { .. }, [];
        "product with a 0 in it", of(6, 0, &[1 << 40, 0, 1 << 40], &[0, 0, 0]), E::ShapeOverflow { .. }, [];
        "fewer strides", of(6, 0, &[2, 3], &[1]), E::Pickle(P::StridesCount { shape: 2, strides: 1, .. }), ["2", "1"];
        "65 dimensions", of(6, 0, &[1; 65], &[1; 65]), E::Pickle(P::Dimensions { found: 65, .. }), ["65", "64"];
        "numel too large", of(7, 0, &[6], &[1]), E::Pickle(P::RecordSize { numel: 7, record: 24, .. }), ["7 elements of float32", "24"];
        "numel too small", of(5, 0, &[5], &[1]), E::Pickle(P::RecordSize { .. }), [];
        "numel·itemsize wraps", of((1 << 62) + 6, 0, &[6], &[1]), E::Pickle(P::RecordSize { .. }), [];
        "numel of another type", tensor(Tensor { class: "HalfStorage", ..PLAIN }), E::Pickle(P::RecordSize { dtype: TorchDtype::F16, .. }), ["float16"];
        "no such record", tensor(Tensor { key: "9", ..PLAIN }), E::Pickle(P::NoRecord { .. }), ["\"9\"", "record"];
        "a key that leads elsewhere", tensor(Tensor { key: "../version", ..PLAIN }), E::Pickle(P::NoRecord { .. }), ["../version"];
        "a key of two parts", Archive::torch(&dict_of(&Tensor { key: "a/b", ..PLAIN }), &[("a/b", &[0; 24])]).bytes(),
            E::Pickle(P::NoRecord { .. }), ["a/b"];
        "one storage of two types", pickled(|p| {
            p.put(b"}").text("a").tensor(&PLAIN).put(b"s").text("b");
            p.tensor(&Tensor { class: "IntStorage", ..PLAIN }).put(b"s.");
        }), E::Pickle(P::StorageTwice { .. }), ["\"0\""];
        "a tensor where the storage is", v2(|p| { p.tensor(&PLAIN).args(0, &[6], &[1]); }), E::Pickle(P::Operand { .. }), ["a tensor", "a storage"];
        "too few arguments", v2(|p| { p.storage("FloatStorage", "0", 6).int(0); }), E::Pickle(P::Operand { .. }), [];
        "too many arguments", v2(|p| { p.storage("FloatStorage", "0", 6).args(0, &[6], &[1]).put(b"NN"); }), E::Pickle(P::Operand { .. }), [];
        "size that is a list", v2(|p| { p.storage("FloatStorage", "0", 6).put(b"K\0])\x89N"); }), E::Pickle(P::Operand { .. }), ["a list", "sizes"];
        "size of text", v2(|p| { p.storage("FloatStorage", "0", 6).put(b"K\0U\x01a\x85K\x01\x85\x89N"); }), E::Pickle(P::Operand { .. }), ["text"];
        "offset of 2^64", v2(|p| { p.storage("FloatStorage", "0", 6).put(b"\x8a\x09\0\0\0\0\0\0\0\0\x01))\x89N"); }), E::Pickle(P::Operand { .. }), [];
        "hooks", v2(|p| { p.storage("FloatStorage", "0", 6).int(0).ints(&[6]).ints(&[1]).put(b"\x89}K\x01K\x02s"); }), E::Pickle(P::Meaning { .. }), ["hooks"];
        "a negative view", v2(|p| { p.storage("FloatStorage", "0", 6).args(0, &[6], &[1]).put(b"}U\x03neg\x88s"); }), E::Pickle(P::Meaning { .. }), ["resolve_neg"];
        "no dtype", rebuilt("torch._utils", "_rebuild_tensor_v3", |p| { p.storage("UntypedStorage", "0", 24).args(0, &[6], &[1]).put(b"N"); }), E::Pickle(P::Operand { .. }), ["a dtype"];
        "a persistent id of another kind", pickled(|p| { p.put(b"}").text("t").put(b"(U\x06moduleNNNNtQs."); }), E::Pickle(P::Operand { .. }), ["('storage'"];
        "a persistent id of 4", pickled(|p| { p.put(b"}").text("t").put(b"(U\x07storageNNNtQs."); }), E::Pickle(P::Operand { .. }), [];
        "a storage of no class", pickled(|p| { p.put(b"}").text("t").put(b"(U\x07storage").global("torch", "Tensor").put(b"U\x010U\x03cpuK\x06tQs."); }), E::Pickle(P::Operand { .. }), ["class of storages"];
    }
    // Strides of what has one element or none say nothing.
    for (size, stride) in [(&[1, 6, 1][..], &[77, 1, 99][..]), (&[2, 0, 3], &[5, 5, 5]), (&[], &[])]
    {
        let bytes = of(6, 0, size, stride);
        assert_eq!(
            measured(&bytes).unwrap().tensors[0].elements(),
            size.iter().product::<i64>() as u64
        );
    }
    let bytes = tensor(Tensor { key: "empty", numel: 0, size: &[0], stride: &[1], ..PLAIN });
    assert_eq!(measured(&bytes).unwrap().tensors[0].nbytes, 0);
}

#[test]
fn class_13_names() {
    let pair = |build: fn(&mut Pickle)| pickled(build);
    table! {
        "a key twice", pair(|p| { p.put(b"}").text("t").put(b"Ns").text("t").tensor(&PLAIN).put(b"s."); }), E::DuplicateName { .. }, ["\"t\""];
        "a dot in a key", pair(|p| { p.put(b"}").text("a.b").tensor(&PLAIN).put(b"s").text("a").put(b"}").text("b").tensor(&PLAIN).put(b"ss."); }), E::DuplicateName { .. }, ["\"a.b\""];
        "1 and \"1\"", pair(|p| { p.put(b"}").text("1").tensor(&PLAIN).put(b"sK\x01").tensor(&PLAIN).put(b"s."); }), E::DuplicateName { .. }, ["\"1\""];
        "a tuple as key", pair(|p| { p.put(b"})").tensor(&PLAIN).put(b"s."); }), E::Key { found: "a tuple", .. }, ["a tuple"];
        "an empty key", pair(|p| { p.put(b"}").text("").tensor(&PLAIN).put(b"s."); }), E::Key { found: "empty", .. }, ["empty"];
        "a long key", pair(|p| { p.put(b"}").text(&"k".repeat(2000)).tensor(&PLAIN).put(b"s."); }), E::NameLength { .. }, ["1024"];
    }
    // Of what is no tensor, keys do not matter.
    let bytes = pair(|p| {
        p.put(b"})Ns").text("").put(b"NsK\x01").tensor(&PLAIN).put(b"s.");
    });
    assert!(measured(&bytes).unwrap().tensor("1").is_some());
}

#[test]
fn what_stands_beside_the_pickle() {
    let of = |change: fn(&mut Archive)| {
        let mut archive = Archive::torch(&dict_of(&PLAIN), &[("0", &[7; 24])]);
        change(&mut archive);
        archive.bytes()
    };
    let old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    let mut tar = vec![0; 512];
    tar[..8].copy_from_slice(b"sys_info");
    tar[257..262].copy_from_slice(b"ustar");
    table! {
        "big-endian", of(|a| a.entry("byteorder").data = b"big".into()), E::ByteOrder { .. }, ["\"big\"", "\"little\""];
        "no byte order at all", of(|a| a.entry("byteorder").data = b"".into()), E::ByteOrder { .. }, [];
        "long byte order", of(|a| a.entry("byteorder").data = vec![b'x'; 4000]), E::ByteOrder { .. }, [];
        "no pickle", of(|a| a.entry("data.pkl").name = "archive/model.json".into()), E::NoPickle, ["data.pkl"];
        "no version", of(|a| a.entry("version").name = "archive/v".into()), E::NoVersion, ["version"];
        "version 0", of(|a| a.entry("version").data = b"0".into()), E::Version { .. }, ["\"0\"", "1 to 10"];
        "version 11", of(|a| a.entry("version").data = b"11\n".into()), E::Version { .. }, ["11"];
        "version of text", of(|a| a.entry("version").data = b"new\x1b".into()), E::Version { .. }, ["new\\u{1b}"];
        "TorchScript", of(|a| { a.add("archive/constants.pkl", b"\x80\x02)."); }), E::TorchScript, ["TorchScript", "state_dict"];
        "before the zip", old, E::BeforeZip, ["before 1.6", "save", "current torch", "safetensors"];
        "a tar", tar, E::BeforeZip, ["before 1.6"];
        "a bare pickle", *b"\x80\x04\x95\x02\0\0\0\0\0\0\0}.", E::BarePickle, ["bare Python pickle", "safetensors"];
        "nothing", *b"", E::NotTorch { .. }, ["begins with \"\""];
        "GGUF", *b"GGUF\x03\0\0\0", E::NotTorch { .. }, ["GGUF"];
        "a zip's first bytes", *b"PK\x03\x04", E::Zip(_), ["cut short"];
    }
    let mut archive = Archive::torch(&dict_of(&PLAIN), &[("0", &[7; 24])]);
    archive.entries.retain(|entry| entry.name != "archive/byteorder");
    archive.entry("version").name = "archive/.data/version".into();
    measured(&archive.bytes()).unwrap();
    let huge = Archive::torch(&vec![b'N'; (32 << 20) + 1], &[]).bytes();
    table! { "a huge pickle", huge, E::PickleTooLarge { .. }, ["33554433", "33554432"]; }
}

#[test]
fn cut_anywhere_it_is_refused_and_flipped_anywhere_it_is_no_panic() {
    let bytes = model();
    for len in 0..bytes.len() {
        measured(&bytes[..len]).expect_err("a cut file is not whole");
    }
    let inner = dict_of(&PLAIN);
    for len in 0..inner.len() {
        measured(&file(&inner[..len])).expect_err("a cut pickle is not whole");
    }
    let mut flipped = bytes.clone();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            flipped[at] ^= 1 << bit;
            if let Ok(file) = measured(&flipped) {
                assert!(file.tensors.iter().all(|t| t.data(&flipped).is_some()));
            }
            flipped[at] ^= 1 << bit;
        }
    }
}
