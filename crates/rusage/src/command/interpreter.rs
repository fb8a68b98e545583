//! The missing interpreter of a program that exists but cannot be executed.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use super::path;

/// Bytes that are searched for a first line, or for the headers of a program; kernels read less of a
/// script.
const HEAD: u64 = 4096;

/// Returns the interpreter that the first file found for a program of this name requires, if it
/// names one.
pub(super) fn missing(program: &CStr) -> Option<String> {
    let path = std::env::var_os("PATH");
    let candidates = path::candidates(program, path.as_deref().map(OsStrExt::as_bytes));
    let mut file = candidates
        .iter()
        .find_map(|name| File::open(OsStr::from_bytes(name.to_bytes())).ok())
        .filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head).ok()?;
    let name = of_script(&head).or_else(|| of_elf(&head))?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// The first word after `#!`.
fn of_script(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    line.split(|&byte| byte == b' ' || byte == b'\t').find(|word| !word.is_empty())
}

/// The loader of a 64-bit little-endian program (PT_INTERP).
fn of_elf(head: &[u8]) -> Option<&[u8]> {
    /// Type of the program header that names the loader.
    const PT_INTERP: usize = 3;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(head.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (headers, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let header = (0..count)
        .map_while(|i| headers.checked_add(i * size))
        .find(|&at| number(at, 4) == Some(PT_INTERP))?;
    let start = number(header.checked_add(8)?, 8)?;
    head.get(start..)?.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines() {
        assert_eq!(of_script(b"#!/bin/sh -e\nx"), Some(&b"/bin/sh"[..]));
        assert_eq!(of_script(b"#! \t/a/b\r\n"), Some(&b"/a/b\r"[..]));
        for none in [&b"#!"[..], b"#! \nx", b"", b"x#!/bin/sh"] {
            assert_eq!(of_script(none), None);
        }
    }

    #[test]
    fn loaders() {
        // One program header, which names the string after it.
        let mut head = vec![0; 64 + 56];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (head[32], head[54], head[56]) = (64, 56, 1);
        (head[64], head[72]) = (3, 120);
        head.extend(b"/lib/ld.so\0more");
        assert_eq!(of_elf(&head), Some(&b"/lib/ld.so"[..]));
        // Cut anywhere, or with any number in it, it yields at most another name.
        for end in 0..120 {
            assert_eq!(of_elf(&head[..end]), None);
        }
        for at in 6..120 {
            let mut other = head.clone();
            other[at..(at + 8).min(120)].fill(0xFF);
            of_elf(&other);
        }
    }
}
