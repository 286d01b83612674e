//! Strict reading of a query string: no parameter unknown, none twice.

use salvo::http::Request;

use crate::error::ApiError;

/// Most users or sessions on one page.
pub(crate) const LIMIT_MAX: usize = 1000;

/// The query parameters that were not taken yet, decoded.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the query of a request that may have the parameters `known`.
    pub(crate) fn of(req: &Request, known: &[&str]) -> Result<Self, ApiError> {
        Self::parse(req.uri().query().unwrap_or_default(), known)
    }

    fn parse(text: &str, known: &[&str]) -> Result<Self, ApiError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| ApiError::bad_request("the query is not UTF-8"))?;
            if !known.contains(&name.as_str()) {
                let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                let error = format!("`{shown}` is not a parameter here; known are {}", known.join(", "));
                return Err(ApiError::field(shown, error));
            }
            if pairs.iter().any(|(earlier, _)| *earlier == name) {
                return Err(ApiError::field(name.clone(), format!("`{name}` stands there twice")));
            }
            let value = decode(value).ok_or_else(|| ApiError::field(&name, format!("`{name}` is not UTF-8")))?;
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// A parameter, if it is there.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// `limit`, if it is there.
    pub(crate) fn limit(&mut self) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.take("limit") else { return Ok(None) };
        match text.parse::<usize>() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) && text.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Some(limit))
            }
            _ => Err(ApiError::field("limit", format!("`limit` must be a number from 1 to {LIMIT_MAX}"))),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    // `+` is a space in a query, as HTML forms and most clients have it; a plus sign is `%2B`.
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parameters_are_decoded_once() {
        let mut query = Query::parse("after=a%2Bb%2525&userid=u1&&limit=7", &["after", "userid", "limit"]).unwrap();
        assert_eq!(query.take("after").unwrap(), "a+b%25");
        assert_eq!(query.take("userid").unwrap(), "u1");
        assert_eq!(query.limit().unwrap(), Some(7));
        assert_eq!(query.limit().unwrap(), None);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in ["limt=5", "limit=1&limit=1", "after=%ff", "%ff=1", "userid"] {
            assert!(Query::parse(bad, &["limit", "after"]).is_err(), "{bad}");
        }
        for bad in ["0", "1001", "-1", "+1", "", "1.5", "x", "99999999999999999999"] {
            assert!(Query::parse(&format!("limit={bad}"), &["limit"]).unwrap().limit().is_err(), "{bad}");
        }
    }
}
