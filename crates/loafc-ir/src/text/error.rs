//! What can be wrong with the text of a program, and where.

/// The text is not a program. Displays as one line, `file:line:column: message`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ParseError {
    /// File as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Byte range in the text.
    pub span: (usize, usize),
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// An error before the file and the line are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub span: (usize, usize),
    pub message: String,
    pub help: Option<String>,
}

impl Problem {
    pub fn new(span: (usize, usize), message: impl Into<String>) -> Problem {
        Problem { span, message: message.into(), help: None }
    }

    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// Finds line and column.
    pub fn locate(self, text: &str, file: &str) -> ParseError {
        let start = self.span.0.min(text.len());
        let before = &text.as_bytes()[..start];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let newlines = before.iter().filter(|b| **b == b'\n').count();
        // Continuation bytes of UTF-8 begin no character.
        let characters = before[line_start..].iter().filter(|b| **b & 0xc0 != 0x80).count();
        ParseError {
            file: file.to_owned(),
            line: newlines as u32 + 1,
            column: characters as u32 + 1,
            span: self.span,
            message: self.message,
            help: self.help,
        }
    }
}
