//! Which file is read, and whether the files it names are there. The only part that looks at the disk.

use std::fmt;
use std::path::{Path, PathBuf};

use super::read::Reading;

/// Where the configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `--config`
    Option(PathBuf),
    /// `CIQADAMQ_CONFIG`
    Variable(PathBuf),
    /// one of the places looked at
    Found(PathBuf),
    /// no file
    BuiltIn,
}

impl Source {
    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Option(path) | Self::Variable(path) | Self::Found(path) => Some(path),
            Self::BuiltIn => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(path) => write!(f, "{} (--config)", path.display()),
            Self::Variable(path) => write!(f, "{} (CIQADAMQ_CONFIG)", path.display()),
            Self::Found(path) => write!(f, "{}", path.display()),
            Self::BuiltIn => f.write_str("built-in defaults (no config.toml, no configs/ciqadamq.toml)"),
        }
    }
}

/// Chooses the file: the option, else the variable, else the first of the usual places that exists.
pub fn locate(option: Option<&Path>, variable: Option<&Path>, exists: impl Fn(&Path) -> bool) -> Source {
    if let Some(path) = option {
        return Source::Option(path.into());
    }
    if let Some(path) = variable.filter(|path| !path.as_os_str().is_empty()) {
        return Source::Variable(path.into());
    }
    let usual = ["config.toml", "configs/ciqadamq.toml"].map(Path::new);
    usual.into_iter().find(|path| exists(path)).map_or(Source::BuiltIn, |path| Source::Found(path.into()))
}

/// Complains about files that the configuration names and that cannot be used; returns warnings.
pub fn check(reading: &mut Reading, known_plugins: &[&str]) -> Vec<String> {
    let mqtt = &reading.config.mqtt;
    let named = [
        ("mqtt.tls_cert", mqtt.tls_cert.clone()),
        ("mqtt.tls_key", mqtt.tls_key.clone()),
        ("mqtt.tls_client_ca", mqtt.tls_client_ca.clone()),
        ("cluster.peer_ca", reading.config.cluster.peer_ca.clone()),
    ];
    let mut warnings = Vec::new();
    let named_count = named.iter().filter(|(_, path)| path.is_some()).count();
    let mut readable = 0;
    for (key, path) in named.into_iter().filter_map(|(key, path)| Some((key, path?))) {
        if let Err(error) = std::fs::File::open(&path)
            .and_then(|file| if file.metadata()?.is_file() { Ok(()) } else { Err(std::io::Error::other("not a file")) })
        {
            reading.complain(key, format!("`{}` cannot be read: {error}", path.display()));
        } else {
            readable += 1;
        }
    }
    // Whether they fit together and can be used is asked of who will use them.
    if let (Some(cert), Some(key)) = (reading.config.mqtt.tls_cert.clone(), reading.config.mqtt.tls_key.clone())
        && readable == named_count
        && let Err(error) = ciqadamq_gate::tls_config(&cert, &key, reading.config.mqtt.tls_client_ca.as_deref())
    {
        reading.complain("mqtt.tls_cert", error.to_string());
    }
    if let Some(dir) = reading.config.plugins.dir.clone() {
        match std::fs::read_dir(&dir) {
            Err(error) => {
                let text =
                    format!("`{}` is no readable directory: {error}; create it or leave the key out", dir.display());
                reading.complain("plugins.dir", text);
            }
            Ok(entries) => {
                for name in entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
                    if name.strip_suffix(".toml").is_some_and(|plugin| !known_plugins.contains(&plugin)) {
                        warnings.push(format!(
                            "plugins.dir: `{name}` in `{}` belongs to no plugin of this build",
                            dir.display()
                        ));
                    }
                }
            }
        }
    }
    warnings
}
