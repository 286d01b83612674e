//! Paths in a vault, as an operator may write them.

/// What is wrong with a path in a vault, if anything is.
pub fn path_problem(path: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~/{} ".contains(c);
    match path {
        "" => Some("is empty"),
        path if path.starts_with('/') || path.ends_with('/') => Some("begins or ends with a slash; leave it out"),
        path if path.split('/').any(|level| matches!(level, "" | "." | "..")) => Some("has an empty or a dotted level"),
        path if !path.chars().all(plain) => Some("has a character other than letters, digits and -_.~/"),
        path if path.replace("{name}", "").contains(['{', '}']) => Some("may hold {name} and no other placeholder"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_its_mount() {
        for good in ["ciqada/{name}", "a/b c/{name}-x", "{name}"] {
            assert_eq!(path_problem(good), None, "{good}");
        }
        for bad in ["", "/x", "x/", "a//b", "../x", "a/./b", "a?b", "a#b", "a%2fb", "{nam}", "{name"] {
            assert!(path_problem(bad).is_some(), "{bad}");
        }
    }
}
