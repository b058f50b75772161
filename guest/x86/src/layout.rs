use kayvee_symbols::SymbolTable;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Physical addresses below this are mapped at link time, page by page: they hold the image. Keep it in step with
/// `build.rs`.
pub const WINDOW_BYTES: u64 = 8 << 20;

/// Where the page at physical address 0 can be read: address 0 itself is not mapped, so that a null pointer faults. Keep
/// it in step with `build.rs`.
pub(crate) const FIRST_PAGE_ALIAS: u64 = 0xa_0000;

/// Where the linker has put things: `image_layout` in `boot.S`.
#[derive(Debug)]
#[repr(C)]
pub struct Layout {
    /// First byte of the image.
    pub image_start: u64,
    /// End of its code, which starts at [`image_start`](Self::image_start).
    pub text_end: u64,
    /// Bounds of the data that ring 3 may write.
    pub data: [u64; 2],
    /// End of the image in memory, zeroed data and stacks included.
    pub image_end: u64,
    /// Bounds of the stack on which ring 3 runs.
    pub ring3_stack: [u64; 2],
    /// Bounds of the stack on which ring 0 serves calls, and on which exceptions are reported.
    pub ring0_stack: [u64; 2],
    /// Bounds of the stack for double faults.
    pub fault_stack: [u64; 2],
    /// The root page table.
    pub root_table: u64,
    /// The way into ring 0: call number and three arguments.
    pub(crate) ring0_call: extern "C" fn(u64, u64, u64, u64) -> u64,
    /// Bounds of the symbol table; both 0 in an image that was not packed.
    pub symbols: [u64; 2],
}

impl Layout {
    /// The name of the stack whose guard page `address` lies in.
    pub fn stack_guarding(&self, address: u64) -> Option<&'static str> {
        let stacks = [("ring 3", self.ring3_stack), ("ring 0", self.ring0_stack), ("fault", self.fault_stack)];
        stacks
            .into_iter()
            .find(|(_, [bottom, _])| (bottom - PAGE_BYTES..*bottom).contains(&address))
            .map(|(name, _)| name)
    }

    /// Whether `address` holds a saved frame pointer and a return address, as far as their place can tell.
    pub fn is_on_a_stack(&self, address: u64) -> bool {
        let stacks = [self.ring3_stack, self.ring0_stack, self.fault_stack];
        stacks.into_iter().any(|[bottom, top]| address >= bottom && address <= top - 16)
    }

    /// End of everything that the image occupies.
    pub fn occupied_end(&self) -> u64 {
        self.image_end.max(self.symbols[1])
    }

    /// The names of the image's functions.
    pub fn symbol_table(&self) -> SymbolTable<'static> {
        let [start, end] = self.symbols;
        if start < self.image_start || end <= start || end > WINDOW_BYTES {
            return SymbolTable::new(&[]);
        }
        // SAFETY: the bounds lie in the window, all of which behind the image's start is mapped readable but for the
        // guard pages, and packing the image put the table behind those; nothing writes there.
        SymbolTable::new(unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) })
    }
}
