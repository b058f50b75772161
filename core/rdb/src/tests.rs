use super::*;
use alloc::{vec, vec::Vec};

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn checksum_is_that_of_redis() {
    assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
}

#[test]
fn lengths_and_strings_read_back() {
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..3000 {
        let len = *rng.choice(&[0, 1, 5, 20, 21, 63, 64, 300, 16383, 16384, 20000]).unwrap();
        let letters = rng.u8(1..=255);
        let text: Vec<u8> = match rng.u8(..4) {
            0 => alloc::format!("{}", rng.i64(..) >> rng.u32(..64)).into_bytes(),
            _ => (0..len).map(|_| rng.u8(..letters)).collect(),
        };
        let number = rng.u64(..) >> rng.u32(..64);
        let compression = if rng.bool() { Compression::On } else { Compression::Off };
        let mut writer = Writer::new(compression);
        writer.kind(kind::STRING);
        writer.text(&text);
        writer.len(number);
        let payload = writer.finish(Dialect::Redis72).unwrap();
        let value = open(&payload, Checksum::On).unwrap();
        let mut reader = Reader::new(&value[1..]);
        assert_eq!(reader.text().unwrap().as_bytes(), text, "round {round}");
        assert_eq!(reader.len(), Ok(number));
        assert_eq!(reader.left(), 0);
    }
}

#[test]
fn compression_shortens_what_repeats() {
    let mut compressor = lzf::Compressor::default();
    let text = b"abcdefgh".repeat(1000);
    let compressed = compressor.compress(&text).unwrap().unwrap();
    assert!(compressed.len() < 150);
    assert_eq!(lzf::expand(&compressed, text.len()).unwrap(), text);
    assert_eq!(lzf::expand(&compressed, text.len() - 1), Err(Error::Corrupt));
    assert_eq!(lzf::expand(&compressed, usize::MAX), Err(Error::Corrupt));
    let mut rng = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..1000).map(|_| rng.u8(..)).collect();
    assert_eq!(compressor.compress(&noise), Ok(None));
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let letters = rng.u8(1..6);
        let text: Vec<u8> = (0..rng.usize(1..400)).map(|_| rng.u8(..letters)).collect();
        if let Some(compressed) = compressor.compress(&text).unwrap() {
            assert!(compressed.len() + 4 <= text.len(), "seed {seed}");
            assert_eq!(lzf::expand(&compressed, text.len()).unwrap(), text, "seed {seed}");
        }
    }
    // What Redis makes of it.
    assert_eq!(compressor.compress(&[b'x'; 21]).unwrap().unwrap(), b"\x01xx\xe0\x0a\x00");
}

#[test]
fn listpacks_read_back() {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..500 {
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut pack = Listpack::new();
        for _ in 0..rng.usize(..30) {
            let text = match rng.u8(..3) {
                0 => alloc::format!("{}", rng.i64(..) >> rng.u32(..64)).into_bytes(),
                1 => vec![b'x'; *rng.choice(&[0, 63, 64, 125, 126, 127, 4095, 4096, 16380, 16384]).unwrap()],
                _ => (0..rng.usize(..20)).map(|_| rng.u8(..)).collect(),
            };
            pack.push(&text);
            texts.push(text);
        }
        let (len, bytes) = (pack.len(), pack.finish().unwrap());
        assert_eq!(bytes.len(), len);
        let mut read: Vec<Vec<u8>> = Vec::new();
        listpack::for_each(&bytes, |entry| -> Result<(), Error> {
            entry.with_text(|text| read.push(text.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(read, texts);
    }
}

fn elements(object: Object<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = Vec::new();
    match object {
        Object::String(text) => all.push(text.as_bytes().to_vec()),
        Object::List(elements) | Object::Set(elements) | Object::Hash(elements) => {
            elements.for_each(|element| -> Result<(), Error> {
                all.push(element.to_vec());
                Ok(())
            })?;
        }
        Object::Stream(mut stream) => show_stream(&mut stream, &mut all)?,
        Object::SortedSet(scored) => scored.for_each(|member, score| -> Result<(), Error> {
            all.push(member.to_vec());
            all.push(match score {
                Score::Number(number) => alloc::format!("{number}").into_bytes(),
                Score::Text(text) => text.to_vec(),
            });
            Ok(())
        })?,
    }
    Ok(all)
}

/// Reads all of a stream.
fn show_stream(stream: &mut stream::Stream<'_>, all: &mut Vec<Vec<u8>>) -> Result<(), Error> {
    stream.entries(|id, fields| -> Result<(), Error> {
        all.push(alloc::format!("{}-{}", id.ms, id.seq).into_bytes());
        fields.iter().for_each(|field| field.with_text(|text| all.push(text.to_vec())));
        Ok(())
    })?;
    let head = stream.head()?;
    all.push(alloc::format!("{} {:?} {}", head.len, head.last_id, head.entries_added).into_bytes());
    for _ in 0..stream.count()? {
        let group = stream.group()?;
        all.push(alloc::format!("{:?} {:?}", group.last_id, group.entries_read).into_bytes());
        all.push(group.name.as_bytes().to_vec());
        for _ in 0..stream.count()? {
            all.push(alloc::format!("{:?}", stream.pending()?).into_bytes());
        }
        for _ in 0..stream.count()? {
            let consumer = stream.consumer()?;
            all.push(alloc::format!("{} {:?}", consumer.seen_ms, consumer.active_ms).into_bytes());
            all.push(consumer.name.as_bytes().to_vec());
            for _ in 0..stream.count()? {
                all.push(alloc::format!("{:?}", stream.pending_id()?).into_bytes());
            }
        }
    }
    Ok(())
}

/// A stream with a group that has something pending.
fn a_stream(entries: u64) -> Vec<u8> {
    let limit = stream::BlockLimit { bytes: 300, entries: 5 };
    let mut writer = Writer::new(Compression::On);
    writer.kind(kind::STREAM_LISTPACKS_3);
    let mut blocks = stream::Blocks::new(limit, &mut writer);
    let id = |number: u64| stream::Id { ms: 1000 + number / 2, seq: number % 2 * 7 };
    for number in 0..entries {
        let name = if number % 4 == 3 { &b"other"[..] } else { b"name" };
        blocks.push(id(number), &[(name, b"-5"), (b"x", b"some text")]).unwrap();
    }
    blocks.finish().unwrap();
    let head = stream::Head {
        len: entries,
        last_id: id(entries),
        first_id: id(0),
        max_deleted_id: id(1),
        entries_added: entries + 2,
    };
    writer.stream_head(head);
    writer.len(1);
    writer.group(b"group", id(3), None);
    writer.len(1);
    writer.pending(stream::Pending { id: id(2), delivered_ms: 77, deliveries: 3 });
    writer.len(1);
    writer.consumer(b"consumer", 88, None, Dialect::Redis72);
    writer.len(1);
    writer.pending_id(id(2));
    writer.finish(Dialect::Redis72).unwrap()
}

#[test]
fn streams_read_back() {
    for entries in [0, 1, 4, 30] {
        let payload = a_stream(entries);
        let all = read(open(&payload, Checksum::On).unwrap()).and_then(elements).unwrap();
        let texts: Vec<&str> = all.iter().map(|text| core::str::from_utf8(text).unwrap()).collect();
        assert_eq!(texts.len() as u64, entries * 5 + 7, "{texts:?}");
        if entries > 3 {
            assert_eq!(&texts[5..10], ["1000-7", "name", "-5", "x", "some text"]);
            assert_eq!(&texts[15..18], ["1001-7", "other", "-5"]);
        }
        let pending = "Pending { id: Id { ms: 1001, seq: 0 }, delivered_ms: 77, deliveries: 3 }";
        assert_eq!(&texts[texts.len() - 4..], [pending, "88 None", "consumer", "Id { ms: 1001, seq: 0 }"]);
    }
}

/// Values of old versions: their bytes by hand, by the format's description.
#[test]
fn old_forms_are_read() {
    for (hex, expected) in [
        // A ziplist: "a", 5, -200, 70000, "b".
        ("0a1c1c000000180000000500000161 03f6 02c038ff 04f0701101 05 0162 ff", vec!["a", "5", "-200", "70000", "b"]),
        // A zipmap: a -> 1, with a free byte, b -> 22.
        ("090e02 0161 01013100 0162 02003232 ff", vec!["a", "1", "b", "22"]),
        // A sorted set with scores as text, and infinities.
        ("0303 0161 03312e35 0162 ff 0163 fe", vec!["a", "1.5", "b", "-inf", "c", "inf"]),
        // A set, a list, a hash of strings.
        ("0202 0161 c07b", vec!["a", "123"]),
        ("0101 0161", vec!["a"]),
        ("0401 0161 0162", vec!["a", "b"]),
        ("0b0c 02000000 02000000 feff 0500", vec!["-2", "5"]),
    ] {
        let bytes = unhex(&hex.replace(' ', ""));
        let expected: Vec<Vec<u8>> = expected.iter().map(|text| text.as_bytes().to_vec()).collect();
        assert_eq!(read(&bytes).and_then(elements), Ok(expected), "{hex}");
    }
}

/// No bytes whatever do harm.
#[test]
fn mutated_values_do_no_harm() {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    let mut pack = Listpack::new();
    ["a", "5", "b", "-70000", "c", "0", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "1.5"]
        .iter()
        .for_each(|text| pack.push(text.as_bytes()));
    let pack = pack.finish().unwrap();
    for kind in [kind::HASH_LISTPACK, kind::ZSET_LISTPACK, kind::SET_LISTPACK] {
        let mut writer = Writer::new(Compression::On);
        writer.kind(kind);
        writer.text(&pack);
        seeds.push(writer.finish(Dialect::Redis72).unwrap());
    }
    let mut writer = Writer::new(Compression::Off);
    writer.kind(kind::LIST_QUICKLIST_2);
    writer.len(2);
    writer.len(2);
    writer.text(&pack);
    writer.len(1);
    writer.text(&b"long ".repeat(50));
    seeds.push(writer.finish(Dialect::Redis72).unwrap());
    for hex in [
        "0a1c1c0000001800000005000001610 3f602c038ff04f070110105 0162ff",
        "090e020161010131000162020032 32ff",
        "03030161 03312e350162ff0163fe",
        "0b0c0200000002000000feff0500",
        "0e011c1c0000001800000005000001610 3f602c038ff04f0701101050162ff",
    ] {
        seeds.push(unhex(&hex.replace(' ', "")));
    }
    seeds.extend([0, 1, 6].map(a_stream));
    for seed in 0..40_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = rng.choice(&seeds).unwrap().clone();
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..4) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes[at] ^= 1 << rng.u8(..8),
                2 => bytes.insert(at, rng.u8(..)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let _ = read(&bytes).and_then(elements);
    }
}

/// Reads a whole file whose bytes come in pieces of `piece` bytes.
fn parts(file: &[u8], piece: usize) -> Result<Vec<alloc::string::String>, file::Fault> {
    let mut reader = file::FileReader::new(Checksum::On);
    let (mut parts, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match reader.next(&file[start..end])? {
            file::Step::Needs(_) if end == file.len() => return Err(file::Fault::Corrupt),
            file::Step::Needs(needed) => {
                assert!(needed > (end - start) as u64);
                end = file.len().min(end + piece);
            }
            file::Step::Item(item, used) => {
                start += used;
                assert_eq!(reader.offset(), start as u64);
                if let file::Item::End = item {
                    return Ok(parts);
                }
                parts.push(alloc::format!("{item:?}"));
            }
        }
    }
}

fn a_file() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| -> Result<(), Error> {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    let mut writer = file::FileWriter::new(Dialect::Redis70, Compression::On, Checksum::On);
    writer.aux("redis-ver", b"7.0.15");
    writer.function(b"#!lua name=x\n");
    writer.database(3, 2, 1);
    for (key, expires_ms) in [("a", Some(1234)), ("long key that is compressed aaaaaaaaaaaaaaaaaaaaaaaaa", None)] {
        let usage = if expires_ms.is_some() { file::Use::IdleSeconds(70) } else { file::Use::Frequency(5) };
        let written = writer.entry(key.as_bytes(), expires_ms, usage, |writer| -> Result<(), Error> {
            writer.kind(kind::STRING);
            writer.text(b"value");
            Ok(())
        });
        written.unwrap();
        writer.drain(&mut take).unwrap();
    }
    let stream = a_stream(9);
    let written = writer.entry(b"stream", None, file::Use::Unknown, |writer| -> Result<(), Error> {
        writer.bytes(&stream[..stream.len() - FOOTER]);
        Ok(())
    });
    written.unwrap();
    writer.finish(&mut take).unwrap();
    bytes
}

#[test]
fn files_read_back_in_pieces_of_any_size() {
    let file = a_file();
    let whole = parts(&file, file.len()).unwrap();
    assert_eq!(whole.len(), 7, "{whole:?}");
    assert!(whole[4].contains("expires_ms: Some(1234), usage: IdleSeconds(70)"), "{whole:?}");
    for piece in [1, 2, 7, 100] {
        assert_eq!(parts(&file, piece).unwrap(), whole);
    }
    for at in 0..file.len() {
        assert!(parts(&file[..at], 50).is_err(), "cut at {at}");
        let mut broken = file.clone();
        broken[at] ^= 1;
        // What is wrong shows at the end, if not before.
        assert!(parts(&broken, 50).is_err(), "byte {at}");
    }
    let mut unchecked = file.clone();
    let end = unchecked.len() - 8;
    unchecked[end..].fill(0);
    assert_eq!(parts(&unchecked, 100).unwrap(), whole);
}

#[test]
fn faults_of_files_have_names() {
    let fault = |bytes: &[u8]| parts(bytes, 1000).unwrap_err();
    assert_eq!(fault(b"REDIX0010\xff"), file::Fault::NotADump);
    assert_eq!(fault(b"REDIS00x0\xff"), file::Fault::NotADump);
    assert_eq!(fault(b"REDIS0013\xff"), file::Fault::Version(13));
    assert_eq!(fault(b"REDIS0000\xff"), file::Fault::Version(0));
    assert_eq!(fault(b"REDIS0010\xf6"), file::Fault::OldFunction);
    assert_eq!(fault(b"REDIS0010\x08"), file::Fault::UnknownPart(8));
    assert_eq!(fault(b"REDIS0010\x06\x01k"), file::Fault::OldModuleValue);
    // Before version 5 there was no checksum.
    assert_eq!(parts(b"REDIS0004\xff", 1), Ok(Vec::new()));
    // A count that no file could hold is known to be too many at once.
    let mut reader = file::FileReader::new(Checksum::On);
    let step = reader.next(b"REDIS0010\x01\x01k\x81\x00\xff\xff\xff\xff\xff\xff\xff").unwrap();
    assert!(matches!(step, file::Step::Needs(needed) if needed > 1 << 50));
    // A value of a module is passed by.
    let module = b"REDIS0009\x07\x01k\x81\x01\x02\x03\x04\x05\x06\x07\x08\x02\x05\x05\x02ab\x04aaaaaaaa\x00\xfe\x01";
    let mut reader = file::FileReader::new(Checksum::On);
    let file::Step::Item(file::Item::Entry(entry), used) = reader.next(module).unwrap() else { panic!() };
    assert_eq!((entry.kind, used), (kind::MODULE_2, module.len() - 2));
    assert_eq!(file::module_name(0x8188_8a49_a86a_4001).len(), 9);
}
