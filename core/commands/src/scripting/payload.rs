//! Libraries as `FUNCTION DUMP` returns them: like `DUMP`, with any number of libraries in place of one value.

use crate::Error;
use alloc::vec::Vec;
use kayvee_rdb::{Checksum, Compression, Dialect, Reader, Writer};

/// Marks a library, whose text follows.
const LIBRARY: u8 = 245;

/// Writes the texts of libraries.
pub fn write<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Result<Vec<u8>, Error> {
    let mut out = Writer::new(Compression::On);
    for text in texts {
        out.bytes(&[LIBRARY]);
        out.text(text);
    }
    out.finish(Dialect::Redis72).map_err(|_| Error::OUT_OF_MEMORY)
}

/// Copies of texts.
pub fn texts<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<Vec<u8>> {
    texts.map(<[u8]>::to_vec).collect()
}

/// Reads the texts of libraries.
pub fn read(payload: &[u8], check: Checksum) -> Result<Vec<Vec<u8>>, Error> {
    let body = kayvee_rdb::open(payload, check).ok_or(Error::text("ERR DUMP payload version or checksum are wrong"))?;
    let broken = |_| Error::text("ERR failed loading functions payload");
    let mut reader = Reader::new(body);
    let mut texts = Vec::new();
    while reader.left() > 0 {
        if reader.byte().map_err(broken)? != LIBRARY {
            return Err(Error::text("ERR given type is not a function"));
        }
        texts.push(reader.text().map_err(broken)?.as_bytes().to_vec());
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_come_back() {
        let libraries = [b"short".to_vec(), b"x".repeat(100), b"y".repeat(20_000)];
        let payload = write(libraries.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(read(&payload, Checksum::On).unwrap(), libraries);
        for at in 0..payload.len() {
            let mut broken = payload.clone();
            broken[at] ^= 1;
            assert!(read(&broken, Checksum::On).is_err(), "byte {at}");
        }
    }
}
