//! A file that keeps a token for a node that was given none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ciqadamq_core::Secret;
use rand::TryRngCore;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::tokens::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TokenError, check_token};

/// Random bytes in a token that is made here: nobody guesses 256 bits.
const TOKEN_RANDOM_BYTES: usize = 32;

/// Why there is no token from this file.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// reading or writing failed
    #[error("token file `{}`: {what}", path.display())]
    Io {
        /// the file
        path: PathBuf,
        /// what was tried
        what: &'static str,
        /// why it failed
        source: io::Error,
    },
    /// not only the owner may read it
    #[error("token file `{}` is readable by others; run chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// the file
        path: PathBuf,
    },
    /// not a file
    #[error("token file `{}` is not a regular file; remove it or configure a token", path.display())]
    NotAFile {
        /// the path
        path: PathBuf,
    },
    /// what stands in it is no token
    #[error("token file `{}`: {reason}; remove the file to have a new one made", path.display())]
    Content {
        /// the file
        path: PathBuf,
        /// what is wrong
        reason: TokenError,
    },
    /// the operating system gave no random bytes
    #[error("no random bytes for a token")]
    Random,
}

/// Reads the token at `path`, or makes one and puts it there, readable by its owner alone.
///
/// A new file is written under another name, flushed to disk and then linked into place, so that there is never half
/// a token; of two processes that do so at once, both end with the same. A newline at the end of an existing file is
/// left out. On Unix a file that the group or others may read is refused.
pub fn load_or_create_token_file(path: &Path) -> Result<Secret, TokenFileError> {
    if let Some(token) = load(path)? {
        return Ok(token);
    }
    let mut random = Zeroizing::new([0u8; TOKEN_RANDOM_BYTES]);
    rand::rngs::OsRng.try_fill_bytes(random.as_mut_slice()).map_err(|_| TokenFileError::Random)?;
    let token = Zeroizing::new(URL_SAFE_NO_PAD.encode(random.as_slice()));
    if create(path, &token)? {
        tracing::info!(path = %path.display(), "token made");
        return Ok(Secret::new(token.as_bytes()));
    }
    // Somebody else was quicker: theirs counts.
    load(path)?.ok_or_else(|| io_error(path, "it vanished while it was read", io::ErrorKind::NotFound.into()))
}

fn load(path: &Path) -> Result<Option<Secret>, TokenFileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(path, "cannot be opened", e)),
    };
    // Asked of the open file, not of the path, which may be another file by now.
    let metadata = file.metadata().map_err(|e| io_error(path, "cannot be examined", e))?;
    if !metadata.is_file() {
        return Err(TokenFileError::NotAFile { path: path.into() });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(TokenFileError::Exposed { path: path.into() });
        }
    }
    let mut bytes = Zeroizing::new(Vec::new());
    let room = TOKEN_BYTES_MAX as u64 + 3;
    file.take(room).read_to_end(&mut bytes).map_err(|e| io_error(path, "cannot be read", e))?;
    let token = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let token = token.strip_suffix(b"\r").unwrap_or(token);
    let is_long = |()| if token.len() < TOKEN_BYTES_MIN { Err(TokenError::TooShort) } else { Ok(()) };
    check_token(token).and_then(is_long).map_err(|reason| TokenFileError::Content { path: path.into(), reason })?;
    Ok(Some(Secret::new(token)))
}

/// `false` if a file stood there meanwhile.
fn create(path: &Path, token: &str) -> Result<bool, TokenFileError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory).map_err(|e| io_error(path, "its directory cannot be made", e))?;
    let draft = draft_name(path);
    let written = write_draft(&draft, token).map_err(|e| io_error(path, "cannot be written", e));
    let placed = written.and_then(|()| match fs::hard_link(&draft, path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // Some file systems have no links; there the rename may replace the file of a process that was as quick.
        Err(_) => fs::rename(&draft, path).map(|()| true).map_err(|e| io_error(path, "cannot be put in place", e)),
    });
    // After a rename or a failed creation there is nothing to remove, and a leftover draft harms nobody.
    let _ = fs::remove_file(&draft);
    // Directories cannot be flushed everywhere; where they can, the name is durable from here on.
    #[cfg(unix)]
    if let Ok(true) = placed {
        File::open(directory).and_then(|d| d.sync_all()).map_err(|e| io_error(path, "cannot be flushed to disk", e))?;
    }
    placed
}

fn draft_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{:08x}", std::process::id(), rand::random::<u32>()));
    path.with_file_name(name)
}

fn write_draft(draft: &Path, token: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(draft)?;
    file.write_all(token.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

fn io_error(path: &Path, what: &'static str, source: io::Error) -> TokenFileError {
    TokenFileError::Io { path: path.into(), what, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn text(secret: &Secret) -> String {
        String::from_utf8(secret.expose().to_vec()).unwrap()
    }

    #[test]
    fn a_token_is_made_once_and_then_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data").join("api-token");
        let made = load_or_create_token_file(&path).unwrap();
        assert_eq!(made.len(), 43);
        assert_eq!(text(&load_or_create_token_file(&path).unwrap()), text(&made));
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["api-token"], "no draft is left");
    }

    #[test]
    fn processes_that_start_at_once_agree_on_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api-token");
        let tokens: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| text(&load_or_create_token_file(&path).unwrap()))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(tokens.len(), 1);
    }

    #[test]
    fn a_newline_at_the_end_is_tolerated_and_what_is_garbage_or_short_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for (content, good) in [
            ("tok-0123456789ab\n", true),
            ("tok-0123456789ab\r\n", true),
            ("tok-0123456789ab", true),
            ("tok-0123456789a\n", false),
            ("", false),
            ("\n", false),
            ("tok 0123456789abc", false),
            ("tok\n0123456789abc\n", false),
        ] {
            let path = dir.path().join("t");
            let _ = fs::remove_file(&path); // the first round has none
            write_draft(&path, "").unwrap();
            fs::write(&path, content).unwrap();
            let read = load_or_create_token_file(&path);
            assert_eq!(read.as_ref().ok().map(text), good.then(|| "tok-0123456789ab".to_owned()), "{content:?}");
        }
        assert!(matches!(
            load_or_create_token_file(dir.path()),
            Err(TokenFileError::NotAFile { .. } | TokenFileError::Io { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_remedy() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api-token");
        load_or_create_token_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_create_token_file(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains("api-token"), "{error}");
    }
}
