//! Reads words, numbers and strings off a text, with their positions. There is no separate pass that makes
//! tokens: `//` begins a comment between statements and divides inside a size, and only the parser knows which.

use std::borrow::Cow;

use super::error::Problem;

/// A place in a text.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

/// A number as it stands in the text.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

pub(super) fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

pub(super) fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, at: 0 }
    }

    /// Position of the next token.
    pub fn start(&mut self) -> usize {
        self.skip_blank();
        self.at
    }

    /// Position behind the last token.
    pub fn end(&self) -> usize {
        self.at
    }

    /// The byte at a position of the text.
    pub fn byte(&self, at: usize) -> Option<u8> {
        self.bytes().get(at).copied()
    }

    fn bytes(&self) -> &'t [u8] {
        self.text.as_bytes()
    }

    /// Skips blanks and comments.
    fn skip_blank(&mut self) {
        let bytes = self.bytes();
        while let Some(b) = bytes.get(self.at) {
            match b {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => self.skip_line(),
                b'/' if bytes.get(self.at + 1) == Some(&b'/') => self.skip_line(),
                _ => return,
            }
        }
    }

    fn skip_line(&mut self) {
        let rest = &self.bytes()[self.at..];
        self.at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }

    /// The first byte of the next token.
    pub fn peek(&mut self) -> Option<u8> {
        self.skip_blank();
        self.bytes().get(self.at).copied()
    }

    /// The byte `ahead` bytes behind the first one of the next token.
    pub fn peek_at(&mut self, ahead: usize) -> Option<u8> {
        self.skip_blank();
        self.bytes().get(self.at + ahead).copied()
    }

    /// Takes a byte if it comes next.
    pub fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes `//` if it comes next, here an operator.
    pub fn eat_floor_division(&mut self) -> bool {
        let rest = &self.bytes()[self.at..];
        let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count();
        let found = rest[blanks..].starts_with(b"//");
        if found {
            self.at += blanks + 2;
        }
        found
    }

    /// The next word, of letters, digits and `_`, not taken yet; empty if no word comes next.
    pub fn peek_word(&mut self) -> &'t str {
        self.skip_blank();
        let rest = &self.bytes()[self.at..];
        if !rest.first().is_some_and(|b| is_word_start(*b)) {
            return "";
        }
        let len = rest.iter().take_while(|b| is_word_byte(**b)).count();
        &self.text[self.at..self.at + len]
    }

    /// Takes this word if it comes next.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    /// Takes the next word; empty if no word comes next.
    pub fn word(&mut self) -> &'t str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    /// Takes words joined by points; empty if no word comes next.
    pub fn dotted(&mut self) -> &'t str {
        self.skip_blank();
        let rest = &self.bytes()[self.at..];
        if !rest.first().is_some_and(|b| is_word_start(*b)) {
            return "";
        }
        self.take_while(|b| is_word_byte(b) || b == b'.')
    }

    /// Takes what follows without a blank between: the name behind a `%` or `@`.
    pub fn sigil_name(&mut self) -> &'t str {
        self.take_while(|b| is_word_byte(b) || b == b'.')
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'t str {
        let start = self.at;
        let rest = &self.bytes()[start..];
        self.at += rest.iter().take_while(|b| accept(**b)).count();
        &self.text[start..self.at]
    }

    /// Takes a number without sign; `negative` says that a `-` stood before it. A digit must come next.
    pub fn number(&mut self, negative: bool) -> Result<Number, Problem> {
        let start = self.start();
        let rest = &self.bytes()[start..];
        let digits = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut len = digits(0);
        let mut float = false;
        let mut whole = true;
        if rest.get(len) == Some(&b'.') {
            float = true;
            let fraction = digits(len + 1);
            whole &= fraction > 0;
            len += 1 + fraction;
        }
        if matches!(rest.get(len), Some(b'e' | b'E')) {
            float = true;
            let sign = usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
            let exponent = digits(len + 1 + sign);
            whole &= exponent > 0;
            len += 1 + sign + exponent;
        }
        let tail = rest[len..].iter().take_while(|b| is_word_byte(**b) || **b == b'.').count();
        self.at = start + len + tail;
        let span = (start, self.at);
        let text = &self.text[start..self.at];
        if !whole || tail > 0 {
            let problem = Problem::new(span, format!("`{text}` is not a number"));
            let help = "a float has digits on both sides of its point and in its exponent";
            return Err(if float { problem.help(help) } else { problem });
        }
        if float {
            let value: f64 =
                text.parse().map_err(|_| Problem::new(span, format!("`{text}` is not a number")))?;
            return Ok(Number::Float(if negative { -value } else { value }));
        }
        let magnitude = text.parse::<u64>().ok().map(i128::from);
        let value = magnitude.map(|m| if negative { -m } else { m }).and_then(|v| i64::try_from(v).ok());
        value.map(Number::Int).ok_or_else(|| {
            let sign = if negative { "-" } else { "" };
            Problem::new(span, format!("integer {sign}{text} does not fit 64 bits"))
        })
    }

    /// Takes a string in quotes. A `"` must come next.
    pub fn string(&mut self) -> Result<Cow<'t, str>, Problem> {
        let start = self.start();
        let body = start + 1;
        self.at = body;
        let bytes = self.bytes();
        loop {
            match bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Borrowed(&self.text[body..self.at - 1]));
                }
                Some(b'\\') => break,
                Some(b'\n') | None => return Err(self.unterminated(start)),
                Some(_) => self.at += 1,
            }
        }
        let mut value = self.text[body..self.at].to_owned();
        loop {
            let Some(c) = self.text[self.at..].chars().next() else { return Err(self.unterminated(start)) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(Cow::Owned(value)),
                '\n' => return Err(self.unterminated(start)),
                '\\' => value.push(self.escape()?),
                c => value.push(c),
            }
        }
    }

    fn unterminated(&self, start: usize) -> Problem {
        Problem::new((start, self.at), "this string has no end")
            .help("close it with `\"` on the same line; a line break inside is written `\\n`")
    }

    /// The character that an escape stands for; the backslash is taken.
    fn escape(&mut self) -> Result<char, Problem> {
        let start = self.at - 1;
        let next = self.text[self.at..].chars().next();
        self.at += next.map_or(0, char::len_utf8);
        let simple = match next {
            Some('n') => Some('\n'),
            Some('t') => Some('\t'),
            Some('r') => Some('\r'),
            Some(c @ ('"' | '\\' | '\'')) => Some(c),
            Some('u') => self.unicode_escape(),
            _ => None,
        };
        simple.ok_or_else(|| {
            Problem::new((start, self.at), format!("unknown escape `{}`", &self.text[start..self.at]))
                .help("known are \\\" \\\\ \\n \\t \\r and \\u{hexadecimal}")
        })
    }

    fn unicode_escape(&mut self) -> Option<char> {
        let rest = self.text[self.at..].strip_prefix('{')?;
        let close = rest.bytes().take(9).position(|b| b == b'}')?;
        let code = u32::from_str_radix(&rest[..close], 16).ok()?;
        self.at += close + 2;
        char::from_u32(code)
    }

    /// The next token in words, and its range, for messages.
    pub fn describe_next(&mut self) -> ((usize, usize), String) {
        let start = self.start();
        let rest = &self.text[start..];
        let Some(first) = rest.chars().next() else {
            return ((start, start), "the end of the file".to_owned());
        };
        let len = match first {
            c if c.is_ascii() && is_word_byte(c as u8) => {
                rest.bytes().take_while(|b| is_word_byte(*b)).count()
            }
            '%' | '@' => 1 + rest[1..].bytes().take_while(|b| is_word_byte(*b)).count(),
            c => c.len_utf8(),
        };
        ((start, start + len), format!("`{}`", &rest[..len]))
    }
}
