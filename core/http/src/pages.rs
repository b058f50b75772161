//! Pages that are not in the site.

use crate::{Bytes, Stats};
use core::net::SocketAddr;

/// A request for such a page.
pub struct PageRequest<'a> {
    /// Decoded and without dot segments; it begins with `/`.
    pub path: &'a [u8],
    /// The value of Authorization.
    pub authorization: Option<&'a [u8]>,
    /// Where it comes from.
    pub remote: SocketAddr,
    /// Whether protected mode lets everybody in from there, and the host that was asked is not one that a stranger may have named.
    pub is_local: bool,
    /// The web server's own figures.
    pub stats: &'a Stats,
}

/// How a page reaches its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At once.
    Whole,
    /// Its body is only the beginning; what [`Server::publish`](crate::Server::publish) says follows until either side
    /// ends the connection, or [`Pages::farewell`] does.
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
    /// Whether [`missing`](Self::missing) may not be asked now: who wants such a page waits.
    fn are_paused(&self) -> bool {
        false
    }
    /// The last that somebody is told who was admitted to a stream with this value of Authorization, empty without one, from
    /// where protected mode lets everybody in or not, and may not listen any more; none for who still may.
    fn farewell(&self, _authorization: &[u8], _is_local: bool) -> Option<&'static [u8]> {
        None
    }
    /// What has to be stable before a client may be told what [`missing`](Self::missing) has just said; none if it may be
    /// told at once.
    fn seen(&mut self) -> Option<u64> {
        None
    }
    /// What is stable.
    fn stable(&self) -> Stable {
        Stable::All
    }
}

/// How much of what pages tell of will not be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stable {
    /// All that [`Pages::seen`] has named up to this.
    Through(u64),
    /// All of it, or nobody wants to wait for that.
    All,
    /// What is waited for may be lost: who waits is not told.
    Lost,
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
