/// What the platform knows of the memory that the global allocator serves.
///
/// The store decides by these figures when to refuse writes, so they are live, not sampled.
pub trait Heap {
    /// Bytes handed out by the allocator and not yet returned.
    fn used_bytes(&self) -> u64;
    /// What data have to share with the limit: more than is used where some of what is free is of little use, since it lies in
    /// pieces.
    fn charged_bytes(&self) -> u64 {
        self.used_bytes()
    }
    /// Bytes that the allocator can hand out in all, or `None` where the platform sets no limit of its own.
    fn limit_bytes(&self) -> Option<u64>;
    /// Bytes of physical memory that the whole program occupies.
    fn resident_bytes(&self) -> u64;
    /// The allocator's name, for `INFO memory`.
    fn allocator(&self) -> &'static str;
}
