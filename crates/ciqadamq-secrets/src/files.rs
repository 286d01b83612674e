//! One secret a file, as Docker and Kubernetes mount them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{Secret, SecretName};
use zeroize::Zeroizing;

use crate::error::ReadError;
use crate::source::{Found, Pace, Source};
use crate::value::{self, BadValue, VALUE_BYTES_MAX};

/// Reading a small file costs nothing: a change is seen this soon.
const POLL: Duration = Duration::from_secs(2);
/// And this soon if somebody presents a token that is not known.
const AT_LEAST: Duration = Duration::from_millis(500);
/// A file system that hangs must not hold up everybody.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A directory with the files `api-token`, `pepper` and `repl-token`.
///
/// They are read anew each time, by name: Kubernetes replaces the whole directory behind a symbolic link.
pub struct Files {
    dir: PathBuf,
}

impl Files {
    /// Reads from `dir`; nothing is opened yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }
}

#[async_trait]
impl Source for Files {
    async fn read(&self, name: SecretName) -> Result<Found, ReadError> {
        let dir = self.dir.clone();
        let reading = tokio::task::spawn_blocking(move || read(&dir, name));
        match tokio::time::timeout(TIMEOUT, reading).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(ReadError::File("reading broke off".into())),
            Err(_) => Err(ReadError::Timeout(TIMEOUT)),
        }
    }

    fn describe(&self, name: SecretName) -> String {
        format!("file {}", self.dir.join(name.short()).display())
    }

    fn kind(&self) -> &'static str {
        "file"
    }

    fn pace(&self) -> Pace {
        Pace { at_least: AT_LEAST, poll: POLL }
    }
}

fn read(dir: &Path, name: SecretName) -> Result<Found, ReadError> {
    match read_bounded(&dir.join(name.short())) {
        Ok(raw) => Ok(Found::Value { secret: value::check(name, raw.expose())?, version: None }),
        // A directory that is not there is no sure sign of a secret that is not there.
        Err(FileError::Io(error)) if error.kind() == ErrorKind::NotFound && dir.is_dir() => Ok(Found::Absent),
        Err(FileError::Io(error)) => Err(ReadError::File(error.to_string())),
        Err(FileError::NotAFile) => Err(ReadError::File("it is not a regular file".into())),
        Err(FileError::TooLong) => Err(BadValue::TooLong.into()),
    }
}

pub(crate) enum FileError {
    Io(std::io::Error),
    NotAFile,
    TooLong,
}

impl From<FileError> for String {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(error) => error.to_string(),
            FileError::NotAFile => "it is not a regular file".into(),
            FileError::TooLong => format!("it is longer than {VALUE_BYTES_MAX} bytes"),
        }
    }
}

/// The whole of a small regular file. A pipe or a device would block or never end.
pub(crate) fn read_bounded(path: &Path) -> Result<Secret, FileError> {
    if !std::fs::metadata(path).map_err(FileError::Io)?.is_file() {
        return Err(FileError::NotAFile);
    }
    let room = VALUE_BYTES_MAX + 2;
    let mut raw = Zeroizing::new(Vec::with_capacity(room + 1));
    File::open(path).and_then(|file| file.take(room as u64 + 1).read_to_end(&mut raw)).map_err(FileError::Io)?;
    if raw.len() > room { Err(FileError::TooLong) } else { Ok(Secret::new(raw.as_slice())) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use SecretName::{ApiToken, Pepper};

    #[tokio::test]
    async fn a_file_is_read_anew_each_time_and_its_line_end_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        assert!(matches!(files.read(ApiToken).await, Ok(Found::Absent)));
        for value in ["first-0123456789", "second-0123456789"] {
            fs::write(dir.path().join("api-token"), format!("{value}\n")).unwrap();
            let Ok(Found::Value { secret, .. }) = files.read(ApiToken).await else { panic!() };
            assert_eq!(secret.expose(), value.as_bytes());
        }
    }

    #[tokio::test]
    async fn what_is_no_secret_is_refused_without_showing_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        let path = dir.path().join("pepper");
        for content in ["", "\n", "hunter2", &"x".repeat(10 << 20)] {
            fs::write(&path, content).unwrap();
            let error = files.read(Pepper).await.unwrap_err();
            assert_eq!(error.kind(), "nonsense");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(files.read(Pepper).await.unwrap_err().kind(), "file");
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_does_not_mean_that_there_is_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Files::new(dir.path().join("gone")).read(ApiToken).await.unwrap_err().kind(), "file");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_pipe_blocks_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let status = std::process::Command::new("mkfifo").arg(dir.path().join("api-token")).status().unwrap();
        assert!(status.success());
        assert_eq!(Files::new(dir.path()).read(ApiToken).await.unwrap_err().kind(), "file");
    }
}
