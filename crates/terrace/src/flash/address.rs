//! Stand-in.
/// Address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(u64);
impl Address {
    /// New.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }
    /// Bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}
