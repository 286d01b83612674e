//! How records become bytes: little-endian numbers of fixed width, lengths in front of what has one.
//!
//! Written by hand because a message is copied once here, on the way of every publish, and because the log has to know where
//! in a frame the bytes of a message stand.

/// What stands in the bytes is not what should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed record: {0}")]
pub struct Malformed(pub &'static str);

/// Appends values to a buffer.
pub(crate) trait Put {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    fn i64(&mut self, value: i64);
    fn bytes(&mut self, value: &[u8]);
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn bytes(&mut self, value: &[u8]) {
        // A packet is at most 256 MiB, so a length fits.
        self.u32(value.len() as u32);
        self.extend_from_slice(value);
    }
}

/// Takes values from the front of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Take<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Take<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    /// How far it has read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.all.len()
    }

    /// Whether what is left begins with a zero, which no command does.
    pub(crate) fn is_padding(&self) -> bool {
        self.all.get(self.at) == Some(&0)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| Malformed("number"))
    }

    fn raw(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(n).ok_or(Malformed("length"))?;
        let bytes = self.all.get(self.at..end).ok_or(Malformed("it ends too early"))?;
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.array()?))
    }
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let n = self.u32()? as usize;
        self.raw(n)
    }
    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text is not UTF-8"))
    }
}
