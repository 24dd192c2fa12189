//! Announcements of one engine about its own prefix cache.

/// Where a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The accelerator's memory: what a request can use at once. Engines that don't say mean this.
    #[default]
    Gpu,
    /// The host's memory: brought back by a copy.
    Cpu,
    /// Disk, or a store that several engines share.
    Storage,
}

/// One announcement. Hashes are the engine's own: opaque, and folded to 64 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks can be found from now on.
    Stored(Stored),
    /// One reference each is gone.
    Removed(Removed),
    /// The whole cache was reset.
    Cleared,
}

/// A run of blocks that can be found from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The engine's hashes, in order.
    pub hashes: Vec<u64>,
    /// The engine's hash of the block before the first; `None` at the start of a prompt.
    pub parent: Option<u64>,
    /// Their content: `block` ids each. Empty when the engine names blocks without telling what is in them, as it does
    /// when it moves them to another tier.
    pub tokens: Vec<u32>,
    /// Tokens in one of these blocks.
    pub block: u32,
    /// Where they lie.
    pub tier: Tier,
    /// The attention group that they belong to.
    pub group: u8,
    /// Does that group attend to everything before? Only such blocks make a prefix that can be used again.
    pub whole: bool,
    /// LoRA adapter that they were computed with.
    pub lora: Option<Box<str>>,
    /// The client's cache salt, told with a prompt's first block.
    pub salt: Option<Box<str>>,
    /// What else is in a block: its number in this run, and an identity (of an image, for instance).
    pub extra: Vec<(u32, Box<[u8]>)>,
}

/// Blocks of which one copy each is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The engine's hashes.
    pub hashes: Vec<u64>,
    /// Where they lay.
    pub tier: Tier,
    /// The attention group.
    pub group: u8,
}

impl KvEvent {
    /// Blocks that it names: what applying it costs.
    pub fn blocks(&self) -> usize {
        match self {
            KvEvent::Stored(s) => s.hashes.len(),
            KvEvent::Removed(r) => r.hashes.len(),
            KvEvent::Cleared => 1,
        }
    }
}
