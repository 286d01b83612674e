//! What the store does to the file system around sled: the directory, the fsync, the watermark, the free space.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ciqadamq_core::Revision;

/// Free bytes that must be left before a commit is tried. A commit of the largest batch writes far less; what counts
/// is that sled never meets a full disk in the middle of one, because it cannot recover from that without a restart.
pub(crate) const RESERVE_BYTES: u64 = 8 * 1024 * 1024;

/// Holds the last acknowledged revision, next to sled's files.
const WATERMARK: &str = "last-revision";

/// Makes the directory, private to its owner. `true` if it was not there.
pub(crate) fn prepare_directory(path: &Path) -> io::Result<bool> {
    if path.is_dir() {
        warn_if_others_can_read(path);
        return Ok(false);
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    Ok(true)
}

#[cfg(unix)]
fn warn_if_others_can_read(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    // A directory that cannot be looked at gives a clear error when it is opened.
    if let Ok(meta) = fs::metadata(path)
        && meta.permissions().mode() & 0o005 == 0o005
    {
        tracing::warn!(path = %path.display(), "user store is readable by everybody on this machine; run chmod 700 on it");
    }
}

#[cfg(not(unix))]
fn warn_if_others_can_read(_path: &Path) {}

/// The files that the store itself looks after.
pub(crate) struct Disk {
    path: PathBuf,
    data: File,
    watermark: File,
}

impl Disk {
    /// Takes over an open database and makes its files and their names durable.
    ///
    /// The watermark is the last revision that was acknowledged, as far as the file says; `None` if there was no such
    /// file or it is empty, as a crash in its making leaves it.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Revision>)> {
        let data = OpenOptions::new().read(true).write(true).open(path.join("db"))?;
        let mut watermark =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path.join(WATERMARK))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut watermark).take(17).read_to_end(&mut bytes)?;
        let last = parse_watermark(&bytes);
        if last.is_none() && !bytes.is_empty() {
            let text = "`last-revision` is damaged, so nobody knows whether acknowledged changes are missing";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok((Self { path: path.to_owned(), data, watermark }, last))
    }

    /// Whether a watermark file exists, without making one.
    pub(crate) fn has_watermark(path: &Path) -> bool {
        path.join(WATERMARK).exists()
    }

    /// Makes the files and the directories that name them durable. Once, when the store is opened: afterwards no file
    /// is added that must survive.
    pub(crate) fn sync_everything(&mut self, last: Revision) -> io::Result<()> {
        self.acknowledge(last)?;
        self.watermark.sync_all()?;
        self.data.sync_all()?;
        if cfg!(unix) {
            File::open(self.path.join("conf"))?.sync_all()?;
            File::open(&self.path)?.sync_all()?;
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // The parent may belong to somebody else; then its durability is theirs too.
            if let Ok(parent) = File::open(parent) {
                parent.sync_all()?;
            }
        }
        Ok(())
    }

    /// Makes what sled has written durable.
    ///
    /// On Linux sled's flush ends in `sync_file_range`, which neither commits the file's new size nor empties the
    /// drive's cache, so a power cut can take away what was "flushed". Elsewhere sled itself calls fsync.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if cfg!(target_os = "linux") { self.data.sync_data() } else { Ok(()) }
    }

    /// Notes that changes up to `last` are durable. Not synced: a note that is too old does no harm.
    pub(crate) fn acknowledge(&mut self, last: Revision) -> io::Result<()> {
        self.watermark.seek(SeekFrom::Start(0))?;
        self.watermark.write_all(&watermark(last))
    }
}

/// Bytes of the database in this directory.
pub(crate) fn size(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path.join("db"))?.len())
}

/// Why nothing may be written at `path`, if its disk is nearly full.
pub(crate) fn space_problem(path: &Path) -> Option<String> {
    // A file system that cannot say how much is free is not refused for that: a failed write is noticed anyway.
    let free = fs2::available_space(path).ok()?;
    (free < RESERVE_BYTES)
        .then(|| format!("disk of {path:?} has {free} bytes free, less than {RESERVE_BYTES}; free some space"))
}

/// The revision and, against torn or foreign content, its complement.
fn watermark(last: Revision) -> [u8; 16] {
    ((u128::from(last.0) << 64) | u128::from(!last.0)).to_be_bytes()
}

fn parse_watermark(bytes: &[u8]) -> Option<Revision> {
    let value = u128::from_be_bytes(bytes.try_into().ok()?);
    let (high, low) = ((value >> 64) as u64, value as u64);
    (high == !low).then_some(Revision(high))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_watermark_comes_back_and_rubbish_does_not() {
        for revision in [0, 1, 77, u64::MAX] {
            assert_eq!(parse_watermark(&watermark(Revision(revision))), Some(Revision(revision)));
        }
        assert_eq!(parse_watermark(&[0; 16]), None);
        assert_eq!(parse_watermark(&[]), None);
        assert_eq!(parse_watermark(&[1; 17]), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_directory_is_private_and_its_parents_are_made() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/users");
        assert!(prepare_directory(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!prepare_directory(&path).unwrap());
    }
}
