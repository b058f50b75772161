use super::{format::HEADER_USED_BYTES, *};
use alloc::{format, string::ToString, sync::Arc, vec::Vec};

fn page(text: &str) -> File {
    File { content_type: "text/plain".to_string(), identity: text.into(), modified_s: 5, ..File::default() }
}

fn example() -> Vec<u8> {
    let mut builder = Builder::default();
    for index in 0..12 {
        builder.page(0, format!("/page{index}").as_bytes(), &page(&format!("text {}", index % 7))).expect("a page");
    }
    let compressed = File { gzip: Some(b"gz".into()), brotli: Some(b"b".into()), ..page("compressed") };
    builder.page(0, b"/c", &compressed).expect("a page");
    builder.page(1, b"/c", &page("other root")).expect("a page");
    builder.folder(0, b"/dir").expect("a folder");
    builder.host(b"Example.org", 1).expect("a host");
    builder.host(b"example.net", 1).expect("a host");
    builder.finish().expect("an image")
}

fn open(image: &[u8]) -> Result<Site, SiteError> {
    Site::open(Arc::new(image.to_vec()))
}

/// An image with some bytes changed, and all checksums right again.
fn forged(image: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    image[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut image);
    image
}

fn body(site: &Site, root: u16, path: &str) -> Option<Vec<u8>> {
    match site.find(root, path.as_bytes())? {
        Found::Page(entry) => Some(site.body(entry.identity_body()).to_vec()),
        Found::Folder => None,
    }
}

#[test]
fn what_is_packed_is_found() {
    let site = open(&example()).expect("a site");
    for index in 0..12 {
        assert_eq!(body(&site, 0, &format!("/page{index}")), Some(format!("text {}", index % 7).into_bytes()));
    }
    assert_eq!(body(&site, 0, "/page12"), None);
    assert_eq!(body(&site, 1, "/page1"), None);
    assert_eq!(body(&site, 1, "/c").as_deref(), Some(&b"other root"[..]));
    assert!(matches!(site.find(0, b"/dir"), Some(Found::Folder)));
    assert_eq!((site.root(b"example.org"), site.root(b"example.net"), site.root(b"example.com")), (1, 1, 0));
    let Some(Found::Page(entry)) = site.find(0, b"/c") else { panic!("not found") };
    assert_eq!(entry.lengths(), [Some(10), Some(2), Some(1)]);
    assert_eq!((entry.content_type(), entry.cache_control(), entry.modified_s()), (&b"text/plain"[..], &b""[..], 5));
    assert_eq!(site.pages().count(), 14);
}

#[test]
fn the_same_pages_make_the_same_image() {
    let mut forward = Builder::default();
    let mut backward = Builder::default();
    for index in 0..20 {
        forward.page(0, format!("/{index}").as_bytes(), &page("x")).expect("a page");
        backward.page(0, format!("/{}", 19 - index).as_bytes(), &page("x")).expect("a page");
    }
    assert_eq!(forward.finish(), backward.finish());
}

#[test]
fn a_damaged_image_is_refused() {
    let image = example();
    assert!(open(&image).is_ok());
    // What lies between the header's end and the bodies says nothing.
    for at in (0..HEADER_USED_BYTES).chain(HEADER_BYTES..image.len()) {
        let mut damaged = image.clone();
        damaged[at] ^= 1;
        assert!(open(&damaged).is_err(), "byte {at}");
        assert!(open(&image[..at]).is_err(), "cut at {at}");
    }
    assert!(open(&[&image[..], b"x"].concat()).is_err());
    assert!(open(b"").is_err());
}

#[test]
fn a_forged_image_never_reaches_beyond_itself() {
    let image = example();
    let layout = Layout::read(&image).expect("a header");
    let index_end = layout.index_at as usize + layout.index_end;
    let mut accepted = 0;
    for at in (8..HEADER_USED_BYTES - 8).chain(layout.index_at as usize..index_end - 8) {
        for bytes in [&[0xff; 8][..], &[0; 8], &[0x7f], b"\n"] {
            let forged = forged(&image, at, bytes);
            let Ok(site) = open(&forged) else { continue };
            accepted += 1;
            // Whatever was accepted can be read.
            for (_, _, entry) in site.pages() {
                for coding in Coding::ALL.iter().filter(|coding| entry.lengths()[**coding as usize].is_some()) {
                    site.body(entry.body(*coding));
                }
                assert!(!entry.content_type().contains(&b'\n'));
            }
            site.root(b"example.org");
            site.find(0, b"/page1");
        }
    }
    assert!(accepted > 0, "forging must reach the checks behind the checksums");
}

#[test]
fn builders_refuse_what_no_reader_takes() {
    let mut builder = Builder::default();
    assert!(builder.page(0, b"no-slash", &page("")).is_err());
    assert!(builder.page(0, b"/a", &File { content_type: "a\r\nX: y".into(), ..page("") }).is_err());
    assert!(builder.page(0, b"/a", &page("")).is_ok());
    assert!(builder.page(0, b"/a", &page("")).is_err());
    assert!(builder.host(b"h", 1).is_ok() && builder.host(b"H", 2).is_err());
}
