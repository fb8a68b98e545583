//! Arguments `FILE` and `FILE:SCALE`: an adapter, and how strongly it acts.

use std::path::PathBuf;
use std::str::FromStr;

/// A file with a scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFile {
    pub path: PathBuf,
    /// 1 if none is given.
    pub scale: f32,
}

impl FromStr for ScaledFile {
    type Err = String;

    /// A colon divides the file from its scale if a number follows it, and no file has the whole name.
    fn from_str(text: &str) -> Result<ScaledFile, String> {
        let whole = ScaledFile { path: text.into(), scale: 1.0 };
        let Some((path, scale)) = text.rsplit_once(':').filter(|(path, _)| !path.is_empty()) else {
            return Ok(whole);
        };
        if whole.path.exists() {
            return Ok(whole);
        }
        match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() => Ok(ScaledFile { path: path.into(), scale }),
            Ok(scale) => Err(format!("the scale is {scale}, expected a finite number")),
            Err(_) => Ok(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_follows_the_last_colon() {
        let of = |text: &str| {
            text.parse::<ScaledFile>()
                .map(|file| (file.path.to_string_lossy().into_owned(), file.scale))
        };
        for (text, path, scale) in [
            ("a.gguf", "a.gguf", 1.0),
            ("a.gguf:0.5", "a.gguf", 0.5),
            ("a.gguf:-2", "a.gguf", -2.0),
            ("C:\\a.gguf", "C:\\a.gguf", 1.0),
            ("C:\\a.gguf:0.25", "C:\\a.gguf", 0.25),
            (":1", ":1", 1.0),
        ] {
            assert_eq!(of(text), Ok((path.to_owned(), scale)));
        }
        assert!(of("a.gguf:nan").is_err() && of("a.gguf:inf").is_err());
    }
}
