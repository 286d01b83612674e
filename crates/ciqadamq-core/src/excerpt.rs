//! What a client chose, in a log line.

/// Bytes of it that are shown. Escaped, one can be several times as long.
const SHOWN_MAX: usize = 128;

/// The beginning of a text that a client chose, short enough for a log line: names and topics can have 65,535 bytes each, and
/// whoever is refused chooses how often.
pub fn excerpt(text: &str) -> &str {
    let end = text.floor_char_boundary(SHOWN_MAX);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_a_short_one_is_not() {
        assert_eq!(excerpt("chat/ua"), "chat/ua");
        assert_eq!(excerpt(&"a".repeat(70_000)).len(), SHOWN_MAX);
        assert_eq!(excerpt(&format!("x{}", "\u{e4}".repeat(400))).len(), SHOWN_MAX - 1);
    }
}
