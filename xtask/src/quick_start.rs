//! The lines a new operator types next. They stand in the README, which is where a test tries them out.

/// The shell lines of the README between the markers, without the fence.
pub fn lines() -> impl Iterator<Item = &'static str> {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once("<!-- next lines -->").unwrap_or_default();
    let (block, _) = rest.split_once("<!-- end -->").unwrap_or_default();
    block.lines().map(str::trim_end).filter(|line| !line.starts_with("```")).skip_while(|line| line.is_empty())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_lines() {
        assert!(super::lines().any(|line| line.starts_with("TOKEN=")));
        assert!(super::lines().any(|line| line.starts_with("mosquitto_sub")));
    }
}
