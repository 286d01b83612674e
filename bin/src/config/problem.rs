//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// a file; line and column count from 1
    File {
        /// as the operator named it
        path: PathBuf,
        /// line
        line: usize,
        /// column, in characters
        column: usize,
    },
    /// an environment variable
    Env(&'static str),
    /// a command line option
    CommandLine,
    /// nowhere: the built-in default
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(_) => f.write_str("environment"),
            Self::CommandLine => f.write_str("command line"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One thing that keeps the broker from starting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// where it is
    pub place: Place,
    /// the key (`mqtt.tcp_addr`); empty if it is about the file as a whole
    pub key: String,
    /// what is wrong, and the remedy
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match &self.place {
            // The operator looks for the variable, not for the key it stands for.
            Place::Env(name) => write!(f, "{name}: ")?,
            _ if self.key.is_empty() => {}
            _ => write!(f, "{}: ", self.key)?,
        }
        f.write_str(&self.text)
    }
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "the configuration has {n} problem{}:", if n == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
