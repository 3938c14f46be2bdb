//! Texts with `*` and `?`, and with variables of the request.

/// What stands for each variable; `None` where there are no variables.
pub type Variables<'v> = Option<&'v dyn Fn(&str) -> Option<String>>;

/// A piece of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// This character.
    Char(char),
    /// Any one character.
    One,
    /// Any characters, or none.
    Any,
}

/// Whether `text` is what `pattern` says. `value` knows what stands for a variable `${NAME}`;
/// without it there are no variables. A pattern with a variable that has no value matches nothing.
pub fn matches(pattern: &str, text: &str, value: Variables<'_>) -> bool {
    match tokens(pattern, value) {
        Some(tokens) => is_match(&tokens, text),
        None => false,
    }
}

/// A text in which variables have their values; `None` if one has none.
pub fn expanded(text: &str, value: Variables<'_>) -> Option<String> {
    let character = |token| match token {
        Token::Char(character) => character,
        Token::One => '?',
        Token::Any => '*',
    };
    Some(tokens(text, value)?.into_iter().map(character).collect())
}

fn tokens(pattern: &str, value: Variables<'_>) -> Option<Vec<Token>> {
    let mut tokens = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        let variable = rest.strip_prefix("${").and_then(|rest| rest.split_once('}'));
        if let (Some(value), Some((name, behind))) = (value, variable) {
            let (name, default) = match name.split_once(',') {
                Some((name, default)) => (name.trim(), Some(default.trim().trim_matches('\''))),
                None => (name, None),
            };
            match name {
                // What would be special stands for itself.
                "*" | "?" | "$" => tokens.extend(name.chars().map(Token::Char)),
                name => {
                    let text = value(name).or_else(|| default.map(str::to_owned))?;
                    tokens.extend(text.chars().map(Token::Char));
                }
            }
            rest = behind;
            continue;
        }
        tokens.push(match character {
            '*' => Token::Any,
            '?' => Token::One,
            other => Token::Char(other),
        });
        rest = &rest[character.len_utf8()..];
    }
    Some(tokens)
}

/// Matches by going back to the last `*` only, which is enough, and keeps the time within the
/// product of the lengths.
fn is_match(tokens: &[Token], text: &str) -> bool {
    let (mut token, mut at) = (0, 0);
    // Where to go on if what is behind the last `*` does not match: one character later.
    let mut again: Option<(usize, usize)> = None;
    loop {
        let next = text[at..].chars().next();
        let fits = match (tokens.get(token), next) {
            (Some(Token::Any), _) => {
                token += 1;
                again = Some((token, at));
                continue;
            }
            (Some(Token::One), Some(_)) => true,
            (Some(Token::Char(wanted)), Some(next)) => *wanted == next,
            (None, None) => return true,
            _ => false,
        };
        if let (true, Some(next)) = (fits, next) {
            token += 1;
            at += next.len_utf8();
            continue;
        }
        let Some((after, from)) = again else { return false };
        let Some(skipped) = text[from..].chars().next() else {
            return false;
        };
        token = after;
        at = from + skipped.len_utf8();
        again = Some((after, at));
    }
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
        ] {
            assert_eq!(matches(pattern, text, Some(&value)), expected, "{pattern} {text}");
        }
        assert!(matches("${aws:username}", "${aws:username}", None));
        assert_eq!(expanded("x${aws:username}?", Some(&value)).as_deref(), Some("xa*b?"));
    }

    /// A pattern of many stars costs no more than its length times the text's.
    #[test]
    fn many_stars_are_quick() {
        let pattern = format!("{}b", "*a".repeat(500));
        assert!(!matches(&pattern, &"a".repeat(2_000), None));
    }
}
