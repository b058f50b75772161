//! Pages that are not in the site.

use crate::{Bytes, Stats};

/// A request for such a page.
pub struct PageRequest<'a> {
    /// Decoded and without dot segments; it begins with `/`.
    pub path: &'a [u8],
    /// The value of Authorization.
    pub authorization: Option<&'a [u8]>,
    /// The web server's own figures.
    pub stats: &'a Stats,
}

/// How a page reaches its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At once.
    Whole,
    /// Its body is only the beginning; what [`Server::publish`](crate::Server::publish) says follows until either side
    /// ends the connection.
    Stream,
}

/// A page made for one request.
pub struct Page {
    /// The status code: 200 for a page, or an error's.
    pub status: u16,
    /// The value of Content-Type.
    pub content_type: &'static str,
    /// The value of Cache-Control; empty for none.
    pub cache_control: &'static str,
    /// The value of WWW-Authenticate; empty for none.
    pub challenge: &'static str,
    /// The page.
    pub body: Bytes,
    /// How it reaches its client.
    pub delivery: Delivery,
}

/// Who makes pages that are not in the site.
pub trait Pages {
    /// A page whose path belongs to the server itself, whatever the site has there.
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page>;
    /// A page for a path that the site has not.
    fn missing(&mut self, request: &PageRequest<'_>) -> Option<Page>;
}

/// There are none.
pub struct NoPages;

impl Pages for NoPages {
    fn reserved(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        None
    }

    fn missing(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        None
    }
}
