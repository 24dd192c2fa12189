//! Small identifiers. All are plain numbers: names stay in the shell.

/// A request in the hands of the router, unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A model name as clients say it (a base model or a LoRA adapter), interned by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// A replica's place in dense tables and bit sets, reused after the replica has left and nothing of it is in flight.
pub type Holder = u16;

/// One life of one replica. The same address leaving and joining again is another life: what is still in flight
/// from the first can't be booked on the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId {
    /// Index into dense tables.
    pub slot: Holder,
    /// Which life of that slot.
    pub life: u32,
}
