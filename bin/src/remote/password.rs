//! Where a password comes from: a file, standard input, or a prompt.

use std::io::{IsTerminal, Read};

use ciqadamq_core::PASSWORD_BYTES_MAX;

use super::Failure;
use super::api::read_bounded;
use crate::cli::PasswordArgs;

/// The password and one line end (`\r\n`).
const BYTES_MAX: u64 = PASSWORD_BYTES_MAX as u64 + 2;

/// Reads it. JSON carries text, so a password set from here is UTF-8.
pub fn read(args: &PasswordArgs) -> Result<String, Failure> {
    let too_long = || Failure::Usage(format!("the password is longer than {PASSWORD_BYTES_MAX} bytes"));
    let bytes = if let Some(file) = &args.password_file {
        read_bounded(file, BYTES_MAX)
            .map_err(|error| Failure::Usage(format!("password file `{}`: {error}", file.display())))?
    } else if args.password_stdin {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::Usage(format!("standard input: {error}")))?;
        bytes
    } else {
        return prompt();
    };
    let password = String::from_utf8(bytes).map_err(|_| Failure::Usage("the password is not UTF-8".into()))?;
    let password = without_line_end(&password);
    match password.len() {
        0 => Err(Failure::Usage("the password is empty".into())),
        len if len > PASSWORD_BYTES_MAX => Err(too_long()),
        _ => Ok(password.to_owned()),
    }
}

/// Asks twice, unseen.
fn prompt() -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "no terminal to ask for the password; give --password-file or --password-stdin".into(),
        ));
    }
    let ask = |text: &str| {
        rpassword::prompt_password(text)
            .map_err(|error| Failure::Usage(format!("the password cannot be asked for: {error}")))
    };
    let password = ask("Password: ")?;
    if password.is_empty() {
        return Err(Failure::Usage("the password is empty".into()));
    }
    if ask("Again: ")? != password {
        return Err(Failure::Usage("the passwords differ; nothing was changed".into()));
    }
    Ok(password)
}

/// Editors and `echo` end a file with one; a password that ends with its own is possible with another one behind it.
fn without_line_end(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn from_file(content: &[u8]) -> Result<String, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, content).unwrap();
        read(&PasswordArgs { password_file: Some(file), password_stdin: false })
    }

    #[test]
    fn one_line_end_of_a_password_file_is_left_out_and_spaces_stay() {
        assert_eq!(from_file(b" pass word \n").unwrap(), " pass word ");
        assert_eq!(from_file(b"x\r\n").unwrap(), "x");
        assert_eq!(from_file(b"x\n\n").unwrap(), "x\n");
        assert_eq!(from_file("p".repeat(512).as_bytes()).unwrap().len(), 512);
    }

    #[test]
    fn empty_overlong_and_binary_passwords_are_refused() {
        for bad in [b"".as_slice(), b"\n", &[b'x'; 513], &[0xff, 0xfe]] {
            assert!(matches!(from_file(bad), Err(Failure::Usage(_))), "{bad:?}");
        }
    }
}
