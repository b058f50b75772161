//! How a user names a disk: `FILE[:SIZE]`.

use std::path::PathBuf;

/// The file that is used where none is named.
pub const USUAL_NAME: &str = "kayvee.disk";

/// A file or block device, and the size that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where it is.
    pub path: PathBuf,
    /// Its size; `None` for the one that it has, or the usual one for a new file.
    pub size_bytes: Option<u64>,
}

impl Spec {
    /// Reads `FILE[:SIZE]`. A size is a number of bytes, or of KiB, MiB, GiB or TiB with K, M, G or T behind it. What
    /// follows the last colon is meant as one if it is nothing, or starts with a digit or a minus. The error is for the user.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let (path, size_bytes) = match text.rsplit_once(':') {
            Some((path, size)) if size.is_empty() || size.starts_with(|c: char| "-0123456789".contains(c)) => {
                let bytes = parse_size(size);
                (path, Some(bytes.ok_or_else(|| format!("'{size}' is not a size such as 512M, 4G or 1T"))?))
            }
            _ => (text, None),
        };
        if path.is_empty() {
            return Err("the disk's file has no name".into());
        }
        Ok(Spec { path: path.into(), size_bytes })
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_sizes() {
        for (text, path, size_bytes) in [
            ("kv.disk", "kv.disk", None),
            ("/dev/vdb", "/dev/vdb", None),
            ("kv.disk:1048576", "kv.disk", Some(1 << 20)),
            ("a/b:4G", "a/b", Some(4 << 30)),
            ("x:3mb", "x", Some(3 << 20)),
            ("x:1TiB", "x", Some(1 << 40)),
            ("with:colon", "with:colon", None),
            ("with:colon:2k", "with:colon", Some(2048)),
        ] {
            assert_eq!(Spec::parse(text), Ok(Spec { path: path.into(), size_bytes }), "{text}");
        }
        for text in ["", ":4G", "x:0", "x:4X", "x:1.5G", "x:99999999999T", "x:4G4", "x:", "x:-1"] {
            assert!(Spec::parse(text).is_err(), "{text}");
        }
    }
}
