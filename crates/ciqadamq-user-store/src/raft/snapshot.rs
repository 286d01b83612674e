//! All users as bytes, for another node.
//!
//! A header with the last revision, then the records in order of names: length of the name, name, length of the record,
//! record as it is on disk; then a zero length, the number of records, and nothing. A snapshot is in memory as a whole
//! while it is sent or received, about 250 bytes a user.

use std::sync::Arc;

use ciqadamq_core::{DirectoryError, Revision, User, Username};

use crate::{Snapshot, codec};

const MAGIC: &[u8; 8] = b"ciqusr01";

/// All records of a snapshot.
pub(crate) fn encode(snapshot: Snapshot) -> Result<Vec<u8>, String> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(snapshot.last_applied().0.to_be_bytes());
    let mut count = 0u64;
    for user in snapshot {
        let user = user.map_err(|e| e.reason)?;
        put(&mut bytes, user.username.as_str().as_bytes());
        put(&mut bytes, &codec::encode(&user)?);
        count += 1;
    }
    put(&mut bytes, &[]);
    bytes.extend(count.to_be_bytes());
    Ok(bytes)
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    // Names and records are far shorter than 4 GiB.
    bytes.extend((part.len() as u32).to_be_bytes());
    bytes.extend(part);
}

/// The records of received bytes, read as they are asked for.
pub(crate) struct Records {
    received: Vec<u8>,
    at: usize,
    count: u64,
    over: bool,
}

/// The revision at which received bytes end, and their records.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<(Revision, Records), String> {
    let mut records = Records { received: bytes, at: 0, count: 0, over: false };
    if records.bytes(8)? != MAGIC {
        return Err("these bytes are no snapshot of users".into());
    }
    let last = Revision(records.number()?);
    Ok((last, records))
}

impl Records {
    fn bytes(&mut self, length: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.received.len());
        let end = end.ok_or("the snapshot is cut off")?;
        let part = &self.received[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn number(&mut self) -> Result<u64, String> {
        let bytes = self.bytes(8)?.try_into().map_err(|_| "the snapshot is cut off")?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn part(&mut self) -> Result<&[u8], String> {
        let length = self.bytes(4)?.try_into().map_err(|_| "the snapshot is cut off")?;
        self.bytes(u32::from_be_bytes(length) as usize)
    }

    fn record(&mut self) -> Result<Option<User>, String> {
        let name = self.part()?;
        if name.is_empty() {
            let count = self.count;
            return match self.number()? {
                expected if expected == count && self.at == self.received.len() => Ok(None),
                expected => Err(format!("the snapshot should have {expected} users, has {count}")),
            };
        }
        let name = std::str::from_utf8(name).map_err(|_| "a user name that is not text")?;
        let name = Username::new(name).map_err(|e| format!("user name `{}`: {e}", name.escape_debug()))?;
        self.count += 1;
        codec::decode(name, self.part()?).map(Some)
    }
}

impl Iterator for Records {
    type Item = Result<Arc<User>, DirectoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        match self.record() {
            Ok(Some(user)) => Some(Ok(Arc::new(user))),
            Ok(None) => {
                self.over = true;
                None
            }
            Err(reason) => {
                self.over = true;
                Some(Err(DirectoryError { reason }))
            }
        }
    }
}
