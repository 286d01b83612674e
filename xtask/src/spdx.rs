//! Licence expressions, as far as Cargo.toml files have them: `OR`, `AND`, `WITH`, parentheses, and the old `/`.

/// Whether `expression` can be satisfied with licences that `allowed` accepts.
///
/// `X WITH E` is one licence: allowed as a whole, or because `X` alone is (an exception only takes conditions away).
pub fn is_satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let result = parser.any()?;
    match parser.words {
        [] => Ok(result),
        [word, ..] => Err(format!("`{expression}`: `{word}` is not expected there")),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Result<bool, String> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Ok(result)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Ok(result)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let result = self.any()?;
            return if self.take(")") { Ok(result) } else { Err("a parenthesis is not closed".into()) };
        }
        let licence = self.word()?;
        if self.take("WITH") {
            let exception = self.word()?;
            return Ok((self.allowed)(licence) || (self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allowed)(licence))
    }

    fn word(&mut self) -> Result<&'a str, String> {
        match self.words {
            [word, rest @ ..] if !matches!(*word, "OR" | "AND" | "WITH" | "(" | ")") => {
                self.words = rest;
                Ok(word)
            }
            [word, ..] => Err(format!("a licence is expected in place of `{word}`")),
            [] => Err("a licence is missing at the end".into()),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    fn ok(expression: &str) -> bool {
        is_satisfied(expression, &|licence| ["MIT", "ISC", "Apache-2.0"].contains(&licence)).unwrap_or(false)
    }

    #[test]
    fn one_alternative_or_all_parts_must_be_allowed() {
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT AND ISC",
            "(MIT OR GPL-3.0) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(ok(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR AGPL-3.0)", "", "MIT MIT", "(MIT", "MIT OR"] {
            assert!(!ok(bad), "{bad}");
        }
    }
}
