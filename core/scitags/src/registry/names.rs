//! When two names are the same, and which name was probably meant.

/// Letters and digits in lower case, with one dash for whatever stands between them.
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
        .map(|name| (distance(text, &name), name))
        .filter(|(steps, _)| *steps <= far)
        .min_by_key(|(steps, _)| *steps);
    let begins = |name: &String| text.chars().count() >= 3 && name.starts_with(text);
    near.map(|(_, name)| name).or_else(|| names.clone().find(begins))
}

/// How many letters must be put in, taken out, changed or swapped with a neighbour (optimal string
/// alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let changed = last[j] + usize::from(x != y);
            let mut steps = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                steps = steps.min(before[j - 1] + 1);
            }
            row.push(steps);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted() {
        for (a, b, steps) in [
            ("", "", 0),
            ("", "ab", 2),
            ("cms", "csm", 1),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (steps, steps), "{a} {b}");
        }
    }

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
