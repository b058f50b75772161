use super::*;
use kayvee_http::{Site, site::Found};
use std::{
    io::Read,
    os::unix::{fs::symlink, net::UnixListener},
    process::Command,
    sync::Arc,
};

/// A folder of its own for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let path = env::temp_dir().join(format!("kayvee-site-{name}-{}", std::process::id()));
        let folder = Folder(path);
        for (name, text) in files {
            let file = folder.0.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        folder
    }

    fn site(&self) -> Site {
        Site::open(Arc::new(pack(&self.0, Effort::Best).expect("packed"))).expect("a site")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A page's type, rule for caches and body.
fn page(site: &Site, root: u16, path: &str) -> Option<(String, String, Vec<u8>)> {
    let Found::Page(entry) = site.find(root, path.as_bytes())? else { return None };
    let body = site.body(entry.identity_body()).to_vec();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Some((text(entry.content_type()), text(entry.cache_control()), body))
}

#[test]
fn files_have_types_rules_indexes_and_hosts() {
    let rules = "# Rules.\ncache * no-cache\ncache /assets/* \"public, max-age=60\"\ntype *.gem text/x-gem\n\
                 host other other.example www.other.example\nindex start.html index.html\n";
    let folder = Folder::new(
        "rules",
        &[
            (RULES_FILE, rules),
            ("index.html", "home"),
            ("a/start.html", "start"),
            ("a/index.html", "not first"),
            ("assets/app.js", "js"),
            ("x.gem", "gem"),
            ("x.png", "png"),
            ("x.unknown-ending", "?"),
            (".secret", "secret"),
            (".well-known/security.txt", "known"),
            ("other/index.html", "other home"),
        ],
    );
    let site = folder.site();
    let text = |path| page(&site, 0, path).map(|page| String::from_utf8(page.2).expect("text"));
    assert_eq!(text("/").as_deref(), Some("home"));
    assert_eq!(text("/index.html").as_deref(), Some("home"));
    assert_eq!(text("/a/").as_deref(), Some("start"));
    assert!(matches!(site.find(0, b"/a"), Some(Found::Folder)));
    assert_eq!(text("/.secret"), None);
    assert_eq!(text("/.kayvee-site"), None);
    assert_eq!(text("/.well-known/security.txt").as_deref(), Some("known"));
    assert_eq!(text("/other/index.html"), None);
    let other = site.root(b"www.other.example");
    assert_eq!(page(&site, other, "/").map(|page| page.2), Some(b"other home".to_vec()));
    for (path, content_type, cache_control) in [
        ("/", "text/html; charset=utf-8", "no-cache"),
        ("/assets/app.js", "text/javascript; charset=utf-8", "public, max-age=60"),
        ("/x.gem", "text/x-gem", "no-cache"),
        ("/x.png", "image/png", "no-cache"),
        ("/x.unknown-ending", "application/octet-stream", "no-cache"),
    ] {
        let page = page(&site, 0, path).expect("a page");
        assert_eq!((page.0.as_str(), page.1.as_str()), (content_type, cache_control), "{path}");
    }
}

#[test]
fn variants_hold_the_same_page_and_images_are_deterministic() {
    let text = "all work and no play makes a dull page\n".repeat(100);
    let folder = Folder::new("variants", &[("a.html", &text), ("b.png", &text), ("c.html", "short")]);
    let image = pack(&folder.0, Effort::Best).expect("packed");
    assert_eq!(image, pack(&folder.0, Effort::Best).expect("packed again"));
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&gzip(text.as_bytes(), Effort::Quick).expect("gzip")[..])
        .read_to_end(&mut unpacked)
        .expect("gzip is read back");
    assert_eq!(unpacked, text.as_bytes());
    unpacked.clear();
    let body = brotli(text.as_bytes(), Effort::Best).expect("brotli");
    brotli::BrotliDecompress(&mut &body[..], &mut unpacked).expect("brotli is read back");
    assert_eq!(unpacked, text.as_bytes());
    let contains = |body: &[u8]| image.windows(body.len()).any(|window| window == body);
    assert!(contains(&body) && contains(&gzip(text.as_bytes(), Effort::Best).expect("gzip")));
    let before = fingerprint(&folder.0).expect("a fingerprint");
    fs::write(folder.0.join("c.html"), "longer").expect("a file");
    assert_ne!(before, fingerprint(&folder.0).expect("a fingerprint"));
}

/// A tag says that bytes are the same, also to a cache that has asked another server of the same site.
#[test]
fn pages_that_are_compressed_in_another_way_have_other_tags() {
    let text: String = (0..2000u32).map(|number| format!("{:x} ", number.wrapping_mul(2_654_435_761))).collect();
    let folder = Folder::new("tags", &[("a.txt", &text), ("b.txt", "short")]);
    let tags = |effort| {
        let site = Site::open(Arc::new(pack(&folder.0, effort).expect("packed"))).expect("a site");
        ["/a.txt", "/b.txt"].map(|path| match site.find(0, path.as_bytes()) {
            Some(Found::Page(entry)) => entry.tag(),
            _ => panic!("no page {path}"),
        })
    };
    let [best, quick] = [Effort::Best, Effort::Quick].map(tags);
    assert_ne!(gzip(text.as_bytes(), Effort::Best).expect("gzip"), gzip(text.as_bytes(), Effort::Quick).expect("gzip"));
    assert!(best[0] != quick[0] && best[1] == quick[1]);
}

/// What an editor leaves beside the file that it works on (`.#name` is hidden, others are not) is no reason to serve nothing.
#[test]
fn links_that_lead_nowhere_are_left_out() {
    let folder = Folder::new("links", &[("index.html", "home")]);
    symlink("nowhere", folder.0.join("lock")).expect("a link");
    let before = fingerprint(&folder.0).expect("a fingerprint");
    let site = folder.site();
    assert!(page(&site, 0, "/").is_some() && page(&site, 0, "/lock").is_none());
    fs::write(folder.0.join("nowhere"), "somewhere").expect("a file");
    assert_ne!(before, fingerprint(&folder.0).expect("a fingerprint"));
    assert!(page(&folder.site(), 0, "/lock").is_some());
}

/// Copies keep times, and so do many who write files.
#[test]
fn files_of_the_same_size_and_time_are_told_apart() {
    let folder =
        Folder::new("same", &[("site/a", "one"), ("site/b", "one"), ("first.site", "x"), ("second.site", "y")]);
    let at = |name: &str| folder.0.join(name);
    let write = |name: &str, text: &str| {
        fs::write(at(name), text).expect("a file");
        let file = fs::File::options().write(true).open(at(name)).expect("a file");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).expect("its time");
    };
    ["site/a", "site/b", "first.site", "second.site"].iter().for_each(|name| write(name, "one"));
    let seen = |name: &str| fingerprint(&at(name)).expect("a fingerprint");
    let before = seen("site");
    assert_eq!(before, seen("site"));
    write("site/a", "two");
    let written = seen("site");
    assert_ne!(before, written);
    fs::rename(at("first.site"), at("site/a")).expect("it is moved");
    assert_ne!(written, seen("site"));
    let link = |to: &str| {
        let _ = fs::remove_file(at("link"));
        std::os::unix::fs::symlink(at(to), at("link")).expect("a link");
        seen("link")
    };
    assert_ne!(link("site/b"), link("second.site"));
}

#[test]
fn an_image_is_no_part_of_itself() {
    let folder = Folder::new("own", &[("index.html", "home"), ("x.site", "old"), ("y.site", "kept")]);
    std::os::unix::fs::symlink("x.site", folder.0.join("link")).expect("a link");
    let left_out = [&*folder.0.join("x.site"), Path::new("/nonexistent")];
    let image = pack_without(&left_out, &folder.0, Effort::Best, Vec::new()).expect("packed");
    let site = Site::open(Arc::new(image)).expect("a site");
    let paths = ["/index.html", "/x.site", "/link", "/y.site"];
    assert_eq!(paths.map(|path| page(&site, 0, path).is_some()), [true, false, false, true]);
}

/// It stays in memory as long as it is served.
#[test]
fn an_image_that_is_served_takes_what_it_has() {
    let text = "x".repeat(50_000);
    let files: Vec<_> = ["a.bin", "b.bin", "c.bin"].map(|name| (name, [name, &text].concat())).to_vec();
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let image = image(&Folder::new("exact", &files).0).expect("an image");
    assert!(image.len() > 150_000 && image.capacity() == image.len(), "{} of {}", image.len(), image.capacity());
}

#[test]
fn names_of_hosts_may_end_in_a_dot() {
    let folder = Folder::new("dot", &[(RULES_FILE, "host other Other.Example.\n"), ("other/index.html", "other")]);
    let site = folder.site();
    assert!(page(&site, site.root(b"other.example"), "/").is_some_and(|page| page.2 == b"other"));
}

#[test]
fn mistakes_are_told() {
    let empty = Folder::new("empty", &[(".hidden", "x")]);
    assert!(pack(&empty.0, Effort::Best).expect_err("no files").to_string().contains("no files to serve"));
    let wrong_rules = [
        "nonsense",
        "cache /x",
        "cache \"x",
        "host a/b h",
        "index",
        "host other",
        "host other h:8080",
        "cache * \"no\\tcache\"",
        "type * text/caf\u{e9}",
    ];
    for rules in wrong_rules {
        let folder = Folder::new("wrong", &[(RULES_FILE, rules), ("a", "x")]);
        assert!(format!("{:#}", pack(&folder.0, Effort::Best).expect_err("wrong")).contains("line 1"), "{rules}");
    }
    for rules in ["host a one\nhost a two", "host a one\nhost b ONE", "host a one\nhost b one.", "host a one\nhost b ."]
    {
        let folder = Folder::new("twice", &[(RULES_FILE, rules), ("a/x", "x")]);
        assert!(format!("{:#}", pack(&folder.0, Effort::Best).expect_err("twice")).contains("line 2"), "{rules}");
    }
    for rules in ["host b two", "host c two", "host .hidden two"] {
        let files = [(RULES_FILE, rules), ("a/c/x", "x"), ("b", "x"), (".hidden/x", "x")];
        let folder = Folder::new("no-folder", &files);
        let told = format!("{:#}", pack(&folder.0, Effort::Best).expect_err("no folder"));
        assert!(told.contains("there is no folder '"), "{rules}: {told}");
    }
    assert!(pack(Path::new("/nonexistent"), Effort::Best).is_err());
}

/// Whoever can write to the folder decides what is served, wherever it lies, as with other web servers.
#[test]
fn links_are_followed_out_of_the_folder() {
    let elsewhere = Folder::new("elsewhere", &[("a/page.html", "elsewhere")]);
    let folder = Folder::new("inside", &[("index.html", "home")]);
    symlink(elsewhere.0.join("a"), folder.0.join("b")).expect("a link");
    assert_eq!(page(&folder.site(), 0, "/b/page.html").map(|page| page.2), Some(b"elsewhere".to_vec()));
}

#[test]
fn loops_of_links_are_found() {
    let folder = Folder::new("loop", &[("a/b/index.html", "home")]);
    for (target, link) in [("..", "a/b/up"), (".", "a/here"), ("../..", "a/b/top")] {
        let link = folder.0.join(link);
        symlink(target, &link).expect("a link");
        for error in [pack(&folder.0, Effort::Best).err(), fingerprint(&folder.0).err()] {
            let error = error.expect("a loop").to_string();
            assert_eq!(error, format!("{} is a link to a folder that it lies in", link.display()));
        }
        fs::remove_file(link).expect("it is there");
    }
    // The same folder twice, side by side, is none.
    symlink("a", folder.0.join("c")).expect("a link");
    assert!(page(&folder.site(), 0, "/c/b/index.html").is_some());
}

/// 40 links to two folders each are more paths than there is memory for.
#[test]
fn links_that_multiply_are_refused() {
    let folder = Folder::new("many", &[("0/index.html", "home")]);
    for level in 1..40 {
        let dir = folder.0.join(level.to_string());
        fs::create_dir(&dir).expect("a folder");
        for name in ["a", "b"] {
            symlink(format!("../{}", level - 1), dir.join(name)).expect("a link");
        }
    }
    let error = pack(&folder.0, Effort::Best).expect_err("too many").to_string();
    assert!(error.contains("more than 65536 files and folders lie behind links"), "{error}");
}

/// Whoever opens a FIFO waits until somebody writes to it.
#[test]
fn only_regular_files_are_read() {
    let folder = Folder::new("fifo", &[("index.html", "home")]);
    let make = |name: &str| {
        let fifo = folder.0.join(name);
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
        let socket = UnixListener::bind(folder.0.join(format!("{name}.socket"))).expect("a socket");
        (fifo, socket)
    };
    let (fifo, _socket) = make("pipe");
    let site = folder.site();
    assert!(page(&site, 0, "/").is_some() && page(&site, 0, "/pipe").is_none());
    assert!(page(&site, 0, "/pipe.socket").is_none() && fingerprint(&folder.0).is_ok());
    for error in [image(&fifo).err(), check(&fifo).err()] {
        assert!(error.expect("no site").to_string().contains("regular file"));
    }
    let (rules, _socket) = make(RULES_FILE);
    let error = pack(&folder.0, Effort::Best).expect_err("no rules").to_string();
    assert_eq!(error, format!("{} is no regular file", rules.display()));
}
