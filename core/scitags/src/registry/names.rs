//! Comparison of names, and suggestions for misspelt ones.

/// Lower-cases a name, with one dash for each run of other characters than letters and digits.
pub(super) fn fold(name: &str) -> String {
    let mut folded = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() {
            folded.push(c);
        } else if !folded.is_empty() && !folded.ends_with('-') {
            folded.push('-');
        }
    }
    folded.truncate(folded.trim_end_matches('-').len());
    folded
}

/// The name nearest to `text`, if it is near: a third of the letters wrong, or the start of one name.
pub(super) fn closest(text: &str, names: impl Iterator<Item = String> + Clone) -> Option<String> {
    let far = (text.chars().count() / 3).max(1);
    let near = names
        .clone()
        .map(|name| (strsim::osa_distance(text, &name), name))
        .filter(|(steps, _)| *steps <= far)
        .min_by_key(|(steps, _)| *steps);
    let begins = |name: &String| text.chars().count() >= 3 && name.starts_with(text);
    near.map(|(_, name)| name).or_else(|| names.clone().find(begins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold() {
        for (name, folded) in [
            ("Analysis Input", "analysis-input"),
            ("analysis_input", "analysis-input"),
            (" Upload/Download (Job) ", "upload-download-job"),
            ("--", ""),
            ("T0 Tape", "t0-tape"),
            ("Größe", "größe"),
        ] {
            assert_eq!(fold(name), folded);
        }
    }
}
