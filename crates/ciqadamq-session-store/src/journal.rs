//! The log on disk: frames of commands in segment files, one frame a commit.
//!
//! A frame says at which offset of the log it stands; offsets go on from segment to segment and never back. Its checksums
//! cover that and the store's number, so that neither an old frame in a file that is used again, nor one of another store, nor what a
//! client has made to look like one can pass for one that was written here.
//!
//! It also says up to where the log was durable when it was written, and so does the head of a segment. A power cut may leave
//! any pages of what was not synced, a later one without an earlier one too. So a broken frame is damage if something behind it says
//! that it was durable; if nothing does, nobody was promised what is in it, and the log ends there. The head of a frame has a checksum of
//! its own: to believe what it says, its content does not have to be read, which may be as broken.
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
const VERSION: u32 = 2;
/// magic, version, store, offset of the first frame, checksum: as in all versions; up to where the log was durable, checksum, zeros
const HEADER: u64 = 48;
/// What is the same in the header of all versions.
const HEADER_FIRST: usize = 32;
/// length and checksum of the content, offset, up to where the log was durable, checksum of all that
const FRAME: usize = 28;
/// Spare files kept for the next segments.
const SPARES_MAX: usize = 2;

/// One file of the log.
#[derive(Debug)]
struct Segment {
    file: File,
    path: PathBuf,
}

impl Segment {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        crate::trial::step(&self.path)?;
        write_at(&self.file, bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        crate::trial::step(&self.path)?;
        self.file.sync_data()
    }

    /// Makes durable what was read, of which nothing says from `durable` on that it is: the process that wrote it may have ended
    /// before, and the next segment relies on it. To sync it would not be enough: after an fsync that failed the system may have, and
    /// take for written, what the disk does not have.
    fn write_again(&self, content: &[u8], durable: usize, end: usize) -> io::Result<()> {
        if durable < end {
            self.write(&content[durable..end], HEADER + durable as u64)?;
        }
        self.sync()
    }
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
    #[error("{0}")]
    Version(String),
}

/// What the head of a frame says.
struct Head {
    len: usize,
    sum: u32,
    /// up to where the log was durable
    durable: u64,
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
    /// everything in front of this is durable
    durable: u64,
    /// Frames in front of the current segment may not be durable, and never will be: nothing in it counts before a checkpoint has
    /// taken their place.
    has_gap: bool,
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
            durable: 0,
            has_gap: false,
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

    /// Everything in front of this is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Bytes of the log on disk, the spare files left out.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.all.read().values().filter_map(|s| s.file.metadata().ok()).map(|m| m.len()).sum()
    }

    /// Reads all frames from `from` on, in order, and gives each, with the offset of its content, to `each`. If the log has
    /// `begun`, there is a segment at `from`.
    ///
    /// The first broken frame ends the log, if nothing behind it says that it was durable: that is what a crash leaves. Otherwise it is
    /// damage, and so is a missing segment.
    pub(crate) fn replay(
        &mut self,
        from: u64,
        begun: bool,
        mut each: impl FnMut(&[u8], u64) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut obsolete = self.found()?;
        let mut found = obsolete.split_off(&from);
        if begun && !found.contains_key(&from) {
            return Err(ReplayError::Corrupt(format!("the log lacks its beginning, {from:016x}.log")));
        }
        // Left by a checkpoint whose last step was cut short.
        remove(&obsolete)?;
        self.end = from;
        while let Some((base, path)) = found.pop_first() {
            if base != self.end {
                return Err(ReplayError::Corrupt(format!("the log lacks what is between {} and {base}", self.end)));
            }
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            let mut durable = self.header_of(&path, base, &content)?;
            let content = &content[HEADER as usize..];
            let next = found.first_key_value().map(|(next, _)| *next);
            let mut at = 0;
            // What stands behind the beginning of the next segment was refused when it was written.
            while next.is_none_or(|next| base + (at as u64) < next)
                && let Some((head, payload)) = self.frame(content, at, base)
            {
                each(payload, base + (at + FRAME) as u64)?;
                durable = durable.max(head.durable);
                at += FRAME + payload.len();
            }
            self.end = base + at as u64;
            let segment = Segment { file, path: path.clone() };
            segment.write_again(content, durable.saturating_sub(base) as usize, at)?;
            self.segments.all.write().insert(base, Arc::new(segment));
            if next != Some(self.end) {
                self.check_end(&path, content, at, base, &found)?;
                // Of a checkpoint that was to take the place of what was not durable, and was not made to its end.
                remove(&found)?;
                break;
            }
        }
        self.segments.end.store(self.end, Ordering::Release);
        self.durable = self.end;
        Ok(())
    }

    /// The segments that are there, by the offset at which they begin.
    fn found(&self) -> io::Result<BTreeMap<u64, PathBuf>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let Some(base) = name.strip_suffix(".log").and_then(|n| u64::from_str_radix(n, 16).ok()) else { continue };
            found.insert(base, path);
        }
        Ok(found)
    }

    /// The log ends at `at` of this segment, and `later` come behind it: is that what a crash leaves?
    fn check_end(
        &self,
        path: &Path,
        content: &[u8],
        at: usize,
        base: u64,
        later: &BTreeMap<u64, PathBuf>,
    ) -> Result<(), ReplayError> {
        let end = base + at as u64;
        let is_durable = |durable: u64| durable > end;
        let damaged = |what: &str| ReplayError::Corrupt(format!("{path:?} is damaged at {at}: {what}"));
        if later.keys().any(|later| *later < end) {
            return Err(damaged("the next segment begins in front of that"));
        }
        let places = (at..content.len()).step_by(FRAME_ALIGN).filter_map(|at| self.head(content, at, base));
        if places.map(|head| head.durable).any(is_durable) {
            return Err(damaged("a commit behind that says that it was there"));
        }
        for (base, path) in later {
            let mut header = Vec::new();
            File::open(path)?.take(HEADER).read_to_end(&mut header)?;
            if is_durable(self.header_of(path, *base, &header)?) {
                return Err(damaged("a segment behind that says that it was there"));
            }
        }
        Ok(())
    }

    /// The sound frame at `at`: its head and its content.
    fn frame<'a>(&self, content: &'a [u8], at: usize, base: u64) -> Option<(Head, &'a [u8])> {
        let head = self.head(content, at, base)?;
        let payload = content.get(at + FRAME..(at + FRAME).checked_add(head.len)?)?;
        (checksum(self.store, base + at as u64, payload) == head.sum).then_some((head, payload))
    }

    /// The sound head of a frame at `at`. What follows the end is zeros, or old frames, which name other offsets.
    fn head(&self, content: &[u8], at: usize, base: u64) -> Option<Head> {
        let bytes = content.get(at..at + FRAME)?;
        let mut from = Take::new(bytes);
        let (len, sum) = (from.u32().ok()? as usize, from.u32().ok()?);
        let (offset, durable, own) = (from.u64().ok()?, from.u64().ok()?, from.u32().ok()?);
        let is_sound = len > 0 && offset == base + at as u64 && durable <= offset;
        (is_sound && checksum(self.store, offset, &bytes[..FRAME - 4]) == own).then_some(Head { len, sum, durable })
    }

    fn header(&self, base: u64, durable: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER as usize);
        header.extend_from_slice(MAGIC);
        header.u32(VERSION);
        header.u64(self.store);
        header.u64(base);
        header.u32(crc32fast::hash(&header));
        header.u64(durable);
        header.u32(crc32fast::hash(&header));
        header.resize(HEADER as usize, 0);
        header
    }

    /// Checks the header of a segment; returns up to where the log was durable when it began.
    fn header_of(&self, path: &Path, base: u64, content: &[u8]) -> Result<u64, ReplayError> {
        let corrupt = || ReplayError::Corrupt(format!("{path:?} does not begin as a segment of this log"));
        let first = content.get(..HEADER_FIRST).ok_or_else(corrupt)?;
        let mut from = Take::new(&first[MAGIC.len()..]);
        let version = from.u32().map_err(|_| corrupt())?;
        let (said, sum) = first.split_at(HEADER_FIRST - 4);
        if first.starts_with(MAGIC) && version != VERSION && crc32fast::hash(said).to_le_bytes() == *sum {
            let text = format!("the format of {path:?} is {version}, this version reads {VERSION}");
            return Err(ReplayError::Version(text));
        }
        let header = content.get(..HEADER as usize).ok_or_else(corrupt)?;
        let durable = Take::new(&header[HEADER_FIRST..]).u64().map_err(|_| corrupt())?;
        if header == self.header(base, durable) { Ok(durable) } else { Err(corrupt()) }
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
        let len = u32::try_from(content.len()).map_err(io::Error::other)?;
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..8].copy_from_slice(&checksum(self.store, self.end, content).to_le_bytes());
        head[8..16].copy_from_slice(&self.end.to_le_bytes());
        head[16..24].copy_from_slice(&self.durable.to_le_bytes());
        let own = checksum(self.store, self.end, &head[..FRAME - 4]);
        head[FRAME - 4..].copy_from_slice(&own.to_le_bytes());
        let written = segment.write(payload, HEADER + (self.end - base));
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

    /// Whether the last frame of the current segment is durable, and nothing behind it says so.
    pub(crate) fn has_unproven_end(&self) -> bool {
        let begun = self.current.as_ref().is_some_and(|(base, _)| *base < self.end);
        begun && self.durable == self.end
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
        let Some((_, segment)) = self.current.as_ref().filter(|_| self.durable < self.end) else { return Ok(()) };
        let result = segment.sync();
        match result {
            Ok(()) if self.has_gap => {}
            Ok(()) => self.durable = self.end,
            // Nobody knows what is on the disk.
            Err(_) => self.soiled = true,
        }
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
        #[cfg(test)]
        crate::trial::step(&path)?;
        let spare = match self.spares()?.pop() {
            Some(spare) => spare,
            None => self.prepare_spare()?,
        };
        let mut file = OpenOptions::new().read(true).write(true).open(&spare)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.header(base, self.durable))?;
        // A frame's length of zero ends the log: what the file held before does not have to be looked at.
        file.write_all(&[0; FRAME])?;
        file.sync_data()?;
        fs::rename(&spare, &path)?;
        sync_dir(&self.dir)?;
        let segment = Arc::new(Segment { file, path });
        self.segments.all.write().insert(base, segment.clone());
        self.current = Some((base, segment));
        self.has_gap |= self.durable < base;
        self.soiled = false;
        Ok(base)
    }

    /// Lets go of all segments in front of `from`, in the place of which there is a checkpoint: as spares, or for good. Never of
    /// the current one.
    pub(crate) fn forget_before(&mut self, from: u64) -> io::Result<()> {
        // A gap is in front of the segment that it made begin; and since then no other checkpoint was made to its end.
        self.has_gap = false;
        self.durable = self.durable.max(from);
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

fn remove(segments: &BTreeMap<u64, PathBuf>) -> io::Result<()> {
    segments.values().try_for_each(fs::remove_file)
}

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
