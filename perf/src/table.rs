//! Results as CSV.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

/// Writes a head and rows. Fields are names and numbers of ours: none needs quoting.
pub fn write(path: &Path, head: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let mut text = head.join(",");
    for row in rows {
        debug_assert_eq!(row.len(), head.len());
        write!(text, "\n{}", row.join(","))?;
    }
    text.push('\n');
    std::fs::write(path, text).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(())
}

/// A number with three digits behind the point; empty where the system did not tell.
pub fn number(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.3}")).unwrap_or_default()
}

/// The middle of some values; `None` without any.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => values.get(middle).copied(),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn rows_stand_under_their_head() {
        let path = tempfile::NamedTempFile::new().unwrap();
        write(path.path(), &["a", "b"], &[vec!["1".into(), number(None)], vec!["2".into(), number(Some(0.5))]])
            .unwrap();
        assert_eq!(std::fs::read_to_string(path.path()).unwrap(), "a,b\n1,\n2,0.500\n");
    }
}
