//! An error for a terminal: what is wrong, where, and what to do about it.

use miette::{Diagnostic, NamedSource, SourceSpan};

/// What the user gets to see.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct Failure {
    message: String,
    #[help]
    help: Option<String>,
    #[source_code]
    text: Option<NamedSource<String>>,
    #[label]
    at: Option<SourceSpan>,
}

/// A result whose error is shown to the user.
pub type Outcome<T> = Result<T, Box<Failure>>;

impl Failure {
    /// An error with this message.
    pub fn new(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), help: None, text: None, at: None }
    }

    /// Says what to do.
    pub fn help(mut self, help: impl Into<String>) -> Failure {
        self.help = Some(help.into());
        self
    }

    /// An error at a place in a program's text.
    pub fn in_text(error: loafc::ParseError, text: String) -> Failure {
        let (begin, end) = error.span;
        let end = end.min(text.len());
        let begin = begin.min(end);
        Failure {
            // The place is repeated in words, for editors and for logs without a terminal.
            message: error.to_string(),
            at: Some((begin, end - begin).into()),
            text: Some(NamedSource::new(error.file, text)),
            help: error.help,
        }
    }
}

/// Turns an error of the library into one for the user.
pub fn told<T, E: std::fmt::Display>(result: Result<T, E>) -> Outcome<T> {
    result.map_err(|e| Box::new(Failure::new(e)))
}

/// As [`told`], with what was tried in front.
pub fn while_doing<T, E: std::fmt::Display>(
    what: impl std::fmt::Display,
    result: Result<T, E>,
) -> Outcome<T> {
    result.map_err(|e| Box::new(Failure::new(format!("{what}: {e}"))))
}

/// An error with this message.
pub fn fail<T>(message: impl std::fmt::Display) -> Outcome<T> {
    Err(Box::new(Failure::new(message)))
}
