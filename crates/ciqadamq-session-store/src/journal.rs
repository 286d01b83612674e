//! The log on disk: frames of commands in segment files, one frame a commit.
//!
//! A frame says at which offset of the log it stands; offsets go on from segment to segment and never back. Its checksum
//! covers that and the store's number, so that neither an old frame in a file that is used again nor one of another store
//! can pass for one that was written here.
//!
//! Segments are filled with zeros before they are used, and used again when a checkpoint has made them needless: a commit
//! then changes no file's size, which costs the disk half.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::wire::{Put, Take};

const MAGIC: &[u8; 8] = b"ciqadamq";
const VERSION: u32 = 1;
const HEADER: u64 = 32;
/// length, checksum, offset
const FRAME: usize = 16;
/// Spare files kept for the next segments.
const SPARES_MAX: usize = 2;

/// One file of the log.
#[derive(Debug)]
struct Segment {
    file: File,
    path: PathBuf,
}

/// The segments by the offset at which they begin. Shared with whoever reads a message.
#[derive(Debug, Default, Clone)]
pub(crate) struct Segments {
    all: Arc<RwLock<BTreeMap<u64, Arc<Segment>>>>,
    /// how far they are written; beside the journal, whose lock is held over an fsync
    end: Arc<AtomicU64>,
}

impl Segments {
    /// Where the first one begins.
    pub(crate) fn start(&self) -> Option<u64> {
        self.all.read().keys().next().copied()
    }

    /// The offset of the next frame.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Reads `len` bytes from an offset of the log on.
    pub(crate) fn read(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        // Held while it reads: a segment that is let go of may be written again.
        let all = self.all.read();
        let (base, segment) = all
            .range(..=at)
            .next_back()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no segment of the log has this offset"))?;
        let mut bytes = vec![0; len];
        read_at(&segment.file, &mut bytes, HEADER + (at - base))?;
        Ok(bytes)
    }
}

/// What reading the log found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Corrupt(String),
}

/// The log, open for writing.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    store: u64,
    segments: Segments,
    segment_bytes: u64,
    /// where the current segment begins, and its file
    current: Option<(u64, Arc<Segment>)>,
    /// the offset of the next frame
    end: u64,
    /// a write failed: what is in the current segment behind `end` is unknown, and it must not be used again
    soiled: bool,
}

impl Journal {
    /// The log in `dir`, to be written from `end` on. Nothing is touched yet.
    pub(crate) fn new(dir: &Path, store: u64, segment_bytes: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            store,
            segments: Segments::default(),
            segment_bytes,
            current: None,
            end: 0,
            soiled: false,
        }
    }

    pub(crate) fn segments(&self) -> Segments {
        self.segments.clone()
    }

    /// The offset of the next frame.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of the log on disk, the spare files left out.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.all.read().values().filter_map(|s| s.file.metadata().ok()).map(|m| m.len()).sum()
    }

    /// Reads all frames from `from` on, in order, and gives each, with the offset of its content, to `each`. If the log has
    /// `begun`, there is a segment at `from`.
    ///
    /// A last frame that was not written to its end is what a crash leaves, and ends the log. Anything else that does not fit
    /// is damage: a missing segment, and a frame that is broken although there are sound ones behind it.
    pub(crate) fn replay(
        &mut self,
        from: u64,
        begun: bool,
        mut each: impl FnMut(&[u8], u64) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let Some(base) = name.strip_suffix(".log").and_then(|n| u64::from_str_radix(n, 16).ok()) else { continue };
            found.insert(base, path);
        }
        if begun && !found.contains_key(&from) {
            return Err(ReplayError::Corrupt(format!("the log lacks its beginning, {from:016x}.log")));
        }
        self.end = from;
        let bases: Vec<u64> = found.keys().copied().collect();
        for (base, path) in found {
            if base < from {
                // Left by a checkpoint whose last step was cut short.
                fs::remove_file(&path)?;
                continue;
            }
            if base != self.end {
                return Err(ReplayError::Corrupt(format!("the log lacks what is between {} and {base}", self.end)));
            }
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            if content.get(..HEADER as usize) != Some(&*self.header(base)) {
                return Err(ReplayError::Corrupt(format!("{path:?} does not begin as a segment of this log")));
            }
            let content = &content[HEADER as usize..];
            let next = bases.iter().copied().find(|other| *other > base);
            let mut at = 0;
            // What stands behind the beginning of the next segment was refused when it was written.
            while next.is_none_or(|next| base + (at as u64) < next)
                && let Some(payload) = self.frame(content, at, base)
            {
                each(payload, base + (at + FRAME) as u64)?;
                at += FRAME + payload.len();
            }
            self.end = base + at as u64;
            if next.is_none()
                && let Some(behind) = self.frame_behind(content, at, base)
            {
                let text = format!("{path:?} is damaged at {at}: there is a sound commit behind it, at {behind}");
                return Err(ReplayError::Corrupt(text));
            }
            self.segments.all.write().insert(base, Arc::new(Segment { file, path }));
        }
        self.segments.end.store(self.end, Ordering::Release);
        // The process that wrote it may have ended before it was durable: the next segment relies on it.
        if let Some(last) = self.segments.all.read().values().next_back() {
            last.file.sync_data()?;
        }
        Ok(())
    }

    /// The sound frame at `at`.
    fn frame<'a>(&self, content: &'a [u8], at: usize, base: u64) -> Option<&'a [u8]> {
        let mut head = Take::new(content.get(at..at + FRAME)?);
        let (len, sum, offset) = (head.u32().ok()? as usize, head.u32().ok()?, head.u64().ok()?);
        if len == 0 || offset != base + at as u64 {
            return None;
        }
        let payload = content.get(at + FRAME..(at + FRAME).checked_add(len)?)?;
        (checksum(self.store, offset, payload) == sum).then_some(payload)
    }

    /// The first sound frame behind a broken one: only damage leaves that, for a commit is not begun before the one in front
    /// of it is written.
    fn frame_behind(&self, content: &[u8], broken: usize, base: u64) -> Option<usize> {
        // What follows the end is zeros, or old frames, which name other offsets.
        let places = (broken + FRAME_ALIGN..content.len().saturating_sub(FRAME)).step_by(FRAME_ALIGN);
        places.into_iter().find(|at| self.frame(content, *at, base).is_some())
    }

    fn header(&self, base: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER as usize);
        header.extend_from_slice(MAGIC);
        header.u32(VERSION);
        header.u64(self.store);
        header.u64(base);
        header.u32(crc32fast::hash(&header));
        header
    }

    /// Writes a frame at the end; `payload` has [`FRAME_HEAD`] bytes of room in front, and a length that is a multiple of
    /// [`FRAME_ALIGN`]. Nothing is durable before [`sync`](Self::sync). After a failure nothing is written before a checkpoint has
    /// begun the next segment.
    pub(crate) fn append(&mut self, payload: &mut [u8]) -> io::Result<()> {
        self.check()?;
        if self.current.is_none() || self.is_full(payload.len()) {
            self.rotate()?;
        }
        let Some((base, segment)) = &self.current else { return Err(io::Error::other("no segment")) };
        let (head, content) = payload.split_at_mut(FRAME);
        head[..4].copy_from_slice(&(content.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&checksum(self.store, self.end, content).to_le_bytes());
        head[8..].copy_from_slice(&self.end.to_le_bytes());
        let written = write_at(&segment.file, payload, HEADER + (self.end - base));
        match written {
            Ok(()) => {
                self.end += payload.len() as u64;
                self.segments.end.store(self.end, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                self.soiled = true;
                Err(error)
            }
        }
    }

    fn is_full(&self, more: usize) -> bool {
        let Some((base, _)) = &self.current else { return true };
        let used = HEADER + (self.end - base);
        used > HEADER && used + more as u64 > self.segment_bytes
    }

    /// Fails after a write or an fsync has, until the next segment begins: what comes behind cannot rely on what stands there.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.soiled { Err(io::Error::other("the log's last write has failed")) } else { Ok(()) }
    }

    /// Makes what was appended durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        let Some((_, segment)) = &self.current else { return Ok(()) };
        let result = segment.file.sync_data();
        // After a failed fsync nobody knows what is on the disk.
        self.soiled |= result.is_err();
        result
    }

    /// Begins the next segment at the present end. What is in the one before is made durable first.
    pub(crate) fn rotate(&mut self) -> io::Result<u64> {
        if !self.soiled {
            self.sync()?;
        }
        let base = self.end;
        if !self.soiled && self.current.as_ref().is_some_and(|(current, _)| *current == base) {
            return Ok(base);
        }
        // One at `base` of which nothing counts is there until the new one takes its place, and its name: sled may rely on it.
        let path = self.dir.join(format!("{base:016x}.log"));
        let spare = match self.spares()?.pop() {
            Some(spare) => spare,
            None => self.prepare_spare()?,
        };
        let mut file = OpenOptions::new().read(true).write(true).open(&spare)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.header(base))?;
        // A frame's length of zero ends the log: what the file held before does not have to be looked at.
        file.write_all(&[0; FRAME])?;
        file.sync_data()?;
        fs::rename(&spare, &path)?;
        sync_dir(&self.dir)?;
        let segment = Arc::new(Segment { file, path });
        self.segments.all.write().insert(base, segment.clone());
        self.current = Some((base, segment));
        self.soiled = false;
        Ok(base)
    }

    /// Lets go of all segments in front of `from`: as spares, or for good. Never of the current one.
    pub(crate) fn forget_before(&mut self, from: u64) -> io::Result<()> {
        let obsolete: Vec<_> = {
            let mut all = self.segments.all.write();
            let keep = all.split_off(&from);
            std::mem::replace(&mut *all, keep).into_values().collect()
        };
        let mut spares = self.spares()?.len();
        for segment in obsolete {
            if spares < SPARES_MAX && segment.file.metadata()?.len() == self.segment_bytes {
                spares += 1;
                let name = self.dir.join(format!("spare-{}", segment.path.file_stem().unwrap_or_default().display()));
                fs::rename(&segment.path, name)?;
            } else {
                fs::remove_file(&segment.path)?;
            }
        }
        sync_dir(&self.dir)
    }

    fn spares(&self) -> io::Result<Vec<PathBuf>> {
        let mut spares = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("spare-")) {
                spares.push(path);
            }
        }
        Ok(spares)
    }

    /// Makes a file for a coming segment, filled with zeros.
    fn prepare_spare(&self) -> io::Result<PathBuf> {
        let path = self.dir.join("making");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        match fill(&mut file, self.segment_bytes) {
            // What is left of the disk is for the frames themselves: the file grows with each.
            Err(error) if is_no_room(&error) => {
                file.set_len(0)?;
                file.sync_all()?;
            }
            other => other?,
        }
        let spare = self.dir.join(format!("spare-new-{:x}", self.end));
        fs::rename(&path, &spare)?;
        Ok(spare)
    }
}

/// Frames begin at multiples of this, so that they can be looked for.
pub(crate) const FRAME_ALIGN: usize = 16;
/// Bytes of room that [`Journal::append`] wants in front of what is written.
pub(crate) const FRAME_HEAD: usize = FRAME;

/// Writes so many zeros.
fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let n = left.min(zeros.len() as u64);
        file.write_all(&zeros[..n as usize])?;
        left -= n;
    }
    file.sync_all()
}

/// Whether there is no room for what was to be written.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn checksum(store: u64, at: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&store.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    // Elsewhere a directory cannot be opened, and the file system looks after its names.
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                bytes = &mut bytes[n..];
                at += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        bytes = &bytes[n..];
        at += n as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
