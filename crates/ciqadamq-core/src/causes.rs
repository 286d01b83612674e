//! Errors for people to read.

use std::error::Error;

/// An error with its causes in one line, each after a colon. Many libraries say by themselves only that something failed; one
/// that repeats its cause is not made to say it twice.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn each_cause_is_said_once() {
        let step = |text, source: Option<Step>| Step { text, source: source.map(Box::new) };
        let error = step("request failed", Some(step("connect: refused", Some(step("refused", None)))));
        assert_eq!(with_causes(&error), "request failed: connect: refused");
    }
}
