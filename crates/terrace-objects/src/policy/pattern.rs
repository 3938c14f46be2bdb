//! Patterns with `*`, `?` and variables of the request.

use std::collections::HashMap;

/// Looks up variables; `None` if there are none.
pub type Variables<'v> = Option<&'v dyn Fn(&str) -> Option<String>>;

/// An element of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// This character.
    Char(char),
    /// Any single character.
    One,
    /// Any number of characters.
    Any,
}

/// Whether `text` matches `pattern`. `value` looks up variables `${NAME}`. A pattern with a
/// variable that has no value matches nothing.
pub fn matches(pattern: &str, text: &str, value: Variables<'_>) -> bool {
    match tokens(pattern, value, text.len()) {
        Some(tokens) => is_match(&tokens, text),
        None => false,
    }
}

/// Replaces variables by their values. `None` if one has no value, or if the result exceeds `most`
/// characters.
pub fn expanded(text: &str, value: Variables<'_>, most: usize) -> Option<String> {
    let character = |token| match token {
        Token::Char(character) => character,
        Token::One => '?',
        Token::Any => '*',
    };
    let tokens = tokens(text, value, most)?;
    Some(tokens.into_iter().map(character).collect())
}

/// Parses a pattern. `None` also if it exceeds `most` characters: a variable may be as long as a
/// header and occur a thousand times.
fn tokens(pattern: &str, value: Variables<'_>, most: usize) -> Option<Vec<Token>> {
    let mut tokens = Vec::with_capacity(pattern.len().min(most));
    let mut rest = pattern;
    let mut left = most;
    while let Some(character) = rest.chars().next() {
        let before = tokens.len();
        let variable = rest.strip_prefix("${").and_then(|rest| rest.split_once('}'));
        if let (Some(value), Some((name, behind))) = (value, variable) {
            let (name, default) = match name.split_once(',') {
                Some((name, default)) => (name.trim(), Some(default.trim().trim_matches('\''))),
                None => (name, None),
            };
            match name {
                // Variables for the special characters themselves.
                "*" | "?" | "$" => tokens.extend(name.chars().map(Token::Char)),
                name => {
                    let text = value(name).or_else(|| default.map(str::to_owned))?;
                    tokens.extend(text.chars().map(Token::Char));
                }
            }
            rest = behind;
        } else {
            tokens.push(match character {
                '*' => Token::Any,
                '?' => Token::One,
                other => Token::Char(other),
            });
            rest = &rest[character.len_utf8()..];
        }
        let added = tokens[before..].iter().filter(|token| **token != Token::Any);
        left = left.checked_sub(added.count())?;
    }
    Some(tokens)
}

/// Matches the runs between stars: the first at the beginning, the last at the end, and each other
/// one at its earliest position, which is sufficient.
fn is_match(tokens: &[Token], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut runs = tokens.split(|token| *token == Token::Any);
    let first = runs.next().unwrap_or_default();
    let Some(last) = runs.next_back() else {
        return first.len() == text.len() && fits(first, &text);
    };
    let Some(between) = text.len().checked_sub(first.len() + last.len()) else {
        return false;
    };
    let (start, rest) = text.split_at(first.len());
    let (mut rest, end) = rest.split_at(between);
    let is_found = |run: &[Token]| match find(run, rest) {
        Some(at) => {
            rest = &rest[at + run.len()..];
            true
        }
        None => false,
    };
    fits(first, start) && fits(last, end) && runs.all(is_found)
}

/// Whether each character matches a run of the same length.
fn fits(run: &[Token], text: &[char]) -> bool {
    run.iter().zip(text).all(|(token, character)| match token {
        Token::Char(wanted) => wanted == character,
        Token::One | Token::Any => true,
    })
}

/// The first position of a run in a text, by the bit-parallel search of Baeza-Yates and Gonnet ("A
/// new approach to text searching"): for each character, which prefixes of the run end there, 64
/// per word. Comparing at each position takes time proportional to the product of the lengths, both
/// of which clients choose.
fn find(run: &[Token], text: &[char]) -> Option<usize> {
    if run.is_empty() || run.len() > text.len() {
        return run.is_empty().then_some(0);
    }
    let words = run.len().div_ceil(64);
    let mut any = vec![0_u64; words];
    let mut of_character: HashMap<char, Vec<u64>> = HashMap::new();
    for (at, token) in run.iter().enumerate() {
        let bits = match token {
            Token::Char(character) => of_character.entry(*character).or_insert_with(|| vec![0; words]),
            Token::One | Token::Any => &mut any,
        };
        bits[at / 64] |= 1 << (at % 64);
    }
    for bits in of_character.values_mut() {
        bits.iter_mut().zip(&any).for_each(|(bits, any)| *bits |= any);
    }
    let last = run.len() - 1;
    let mut ends = vec![0_u64; words];
    for (at, character) in text.iter().enumerate() {
        // The empty prefix ends everywhere.
        let mut carried = 1;
        let allowed = of_character.get(character).unwrap_or(&any);
        for (word, allowed) in ends.iter_mut().zip(allowed) {
            let next = *word >> 63;
            *word = (*word << 1 | carried) & allowed;
            carried = next;
        }
        if ends[last / 64] >> (last % 64) & 1 == 1 {
            return Some(at - last);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_and_variables() {
        let value = |name: &str| (name == "aws:username").then(|| "a*b".to_owned());
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*a*b*", "xxaxxb", true),
            ("a?c", "aüc", true),
            ("a?c", "ac", false),
            ("h/${aws:username}/*", "h/a*b/x", true),
            ("h/${aws:username}/*", "h/axb/x", false),
            ("${*}", "*", true),
            ("${*}", "x", false),
            ("${aws:nothing}", "", false),
            ("${aws:nothing, 'x'}", "x", true),
            ("${", "${", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("**", "", true),
            ("*aab*", "aaab", true),
            ("*a?b*c", "xaabbc", true),
            ("*a?b*c", "xabc", false),
            ("?*?", "ü", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "abb", false),
        ] {
            assert_eq!(matches(pattern, text, Some(&value)), expected, "{pattern} {text}");
        }
        assert!(matches("${aws:username}", "${aws:username}", None));
        assert_eq!(expanded("x${aws:username}?", Some(&value), 5).as_deref(), Some("xa*b?"));
    }

    /// The cost of a pattern with many stars is at most its length times the text's.
    #[test]
    fn many_stars_are_quick() {
        let pattern = format!("{}b", "*a".repeat(500));
        assert!(!matches(&pattern, &"a".repeat(2_000), None));
    }

    /// Regression: the run after a star was compared at each position of a text such as a header of
    /// 390,000 bytes, so one request took 35 seconds; and variables were replaced at every
    /// occurrence, which took gigabytes.
    #[test]
    fn long_patterns_and_texts_are_quick() {
        let began = std::time::Instant::now();
        let text = "a".repeat(8_000);
        for run in ["a".repeat(4_000), "a?".repeat(2_000)] {
            for _ in 0..20 {
                assert!(!matches(&format!("*{run}b"), &text, None));
                assert!(!matches(&format!("*{run}b*"), &text, None));
                assert!(matches(&format!("*{run}*"), &text, None));
            }
        }
        let value = |_: &str| Some("v".repeat(400_000));
        let many = "${aws:useragent}".repeat(100_000);
        assert!(!matches(&many, &text, Some(&value)));
        assert_eq!(expanded(&many, Some(&value), text.len()), None);
        assert!(
            began.elapsed() < std::time::Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
    }

    /// Gives the same result as comparing at each position.
    #[test]
    fn runs_are_found_where_they_are_first() {
        let naive = |run: &[Token], text: &[char]| {
            let mut places = 0..=text.len().checked_sub(run.len())?;
            places.find(|at| fits(run, &text[*at..at + run.len()]))
        };
        let mut drawn = 1_u64;
        let mut draw = |below: u64| {
            drawn = drawn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (drawn >> 33) % below
        };
        for _ in 0..2_000 {
            let (run_length, text_length) = (draw(140), draw(300));
            let run: Vec<_> = (0..run_length)
                .map(|_| match draw(12) {
                    0 => Token::One,
                    1 => Token::Char('ü'),
                    _ => Token::Char('a'),
                })
                .collect();
            let mut text: Vec<_> = (0..text_length).map(|_| if draw(9) == 0 { 'ü' } else { 'a' }).collect();
            if draw(2) == 0 {
                // It does occur.
                text.extend(run.iter().map(|token| match token {
                    Token::Char(character) => *character,
                    _ => 'x',
                }));
            }
            assert_eq!(find(&run, &text), naive(&run, &text));
        }
    }
}
