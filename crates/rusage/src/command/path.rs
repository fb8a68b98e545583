//! The places where a program may be.

use std::ffi::{CStr, CString};

/// The folders that are searched if `PATH` is not set.
const DEFAULT: &[u8] = b"/usr/local/bin:/bin:/usr/bin";

/// The files to try, in order, for a program of this name, as execvp(3) does: the name itself if it
/// contains a slash, else one in each folder of `PATH`. None for the empty name.
pub(super) fn candidates(name: &CStr, path: Option<&[u8]>) -> Vec<CString> {
    let name = name.to_bytes();
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    path.unwrap_or(DEFAULT)
        .split(|&byte| byte == b':')
        .filter_map(|folder| {
            let mut file = Vec::with_capacity(folder.len() + name.len() + 2);
            // An empty name means the current folder.
            file.extend_from_slice(if folder.is_empty() { b"." } else { folder });
            file.push(b'/');
            file.extend_from_slice(name);
            CString::new(file).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_in_each_folder() {
        let of = |name: &CStr, path| -> Vec<String> {
            candidates(name, path).iter().map(|c| c.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(of(c"x", Some(b"/a::/b/:")), ["/a/x", "./x", "/b//x", "./x"]);
        assert_eq!(of(c"a/x", Some(b"/a")), ["a/x"]);
        assert_eq!(of(c"x", None).last().unwrap(), "/usr/bin/x");
        assert!(of(c"", Some(b"/a")).is_empty());
    }
}
