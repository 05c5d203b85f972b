//! Parses size expressions: `+ - * // %`, `max`, `min`, parentheses over integers and size symbols.

use super::cursor::Number;
use super::error::Problem;
use super::parse::{Parser, Place};
use crate::size::Size;

/// Operators in one expression. Sizes are computed while they are read, and every level of floor division
/// makes a size that takes longer to print and to compare.
const MAX_OPERATORS: usize = 256;

/// Terms of one polynomial: products of sums grow as fast as their sizes multiply.
const MAX_TERMS: usize = 1024;

impl<'t> Parser<'t> {
    /// A size expression. Only in brackets is `//` a division; elsewhere it begins a comment.
    pub(super) fn size(&mut self, place: Place) -> Result<Size, Problem> {
        self.operators = 0;
        self.sum(place)
    }

    fn sum(&mut self, place: Place) -> Result<Size, Problem> {
        let mut total = self.product(place)?;
        loop {
            let start = self.cursor.start();
            let minus = match self.cursor.peek() {
                Some(b'+') => false,
                Some(b'-') => true,
                _ => return Ok(total),
            };
            self.cursor.eat(if minus { b'-' } else { b'+' });
            self.count_operator(start)?;
            let right = self.product(place)?;
            let exact = |a: i64, b: i64| if minus { a.checked_sub(b) } else { a.checked_add(b) };
            total = match (total.as_const(), right.as_const()) {
                (Some(a), Some(b)) => self.fits(start, exact(a, b))?,
                _ if minus => total - right,
                _ => total + right,
            };
        }
    }

    fn product(&mut self, place: Place) -> Result<Size, Problem> {
        let mut total = self.signed()?;
        loop {
            let start = self.cursor.end();
            if place == Place::Bracketed && self.cursor.eat_floor_division() {
                self.count_operator(start)?;
                let divisor = self.divisor()?;
                total = match (total.as_const(), divisor.as_const()) {
                    (Some(i64::MIN), Some(-1)) => self.fits(start, None)?,
                    _ => total.floor_div(divisor),
                };
            } else if self.cursor.eat(b'*') {
                self.count_operator(start)?;
                let right = self.signed()?;
                total = match (total.as_const(), right.as_const()) {
                    (Some(a), Some(b)) => self.fits(start, a.checked_mul(b))?,
                    _ => self.polynomial(start, total, right)?,
                };
            } else if self.cursor.eat(b'%') {
                self.count_operator(start)?;
                let divisor = self.divisor()?;
                total = total.modulo(divisor);
            } else {
                return Ok(total);
            }
        }
    }

    fn divisor(&mut self) -> Result<Size, Problem> {
        let start = self.cursor.start();
        let divisor = self.signed()?;
        if divisor.is(0) {
            return Err(Problem::new((start, self.cursor.end()), "a size can't be divided by zero"));
        }
        Ok(divisor)
    }

    fn polynomial(&self, start: usize, a: Size, b: Size) -> Result<Size, Problem> {
        if a.terms().len().saturating_mul(b.terms().len()) > MAX_TERMS {
            let message = format!("this product of sizes has more than {MAX_TERMS} terms");
            return Err(Problem::new((start, self.cursor.end()), message));
        }
        Ok(a * b)
    }

    fn fits(&self, start: usize, value: Option<i64>) -> Result<Size, Problem> {
        let span = (start, self.cursor.end());
        value.map(Size::from).ok_or_else(|| Problem::new(span, "this size does not fit 64 bits"))
    }

    fn count_operator(&mut self, start: usize) -> Result<(), Problem> {
        self.operators += 1;
        if self.operators <= MAX_OPERATORS {
            return Ok(());
        }
        let message = format!("a size can't have more than {MAX_OPERATORS} operators");
        Err(Problem::new((start, self.cursor.end()), message))
    }

    fn signed(&mut self) -> Result<Size, Problem> {
        let start = self.cursor.start();
        let mut negative = false;
        while self.cursor.eat(b'-') {
            self.count_operator(start)?;
            negative = !negative;
        }
        if self.cursor.peek().is_some_and(|b| b.is_ascii_digit()) {
            return match self.cursor.number(negative)? {
                Number::Int(value) => Ok(Size::from(value)),
                Number::Float(_) => {
                    let message = "a size can't be a float";
                    Err(Problem::new((start, self.cursor.end()), message))
                }
            };
        }
        let value = self.operand()?;
        match value.as_const() {
            Some(c) if negative => self.fits(start, c.checked_neg()),
            _ if negative => Ok(-value),
            _ => Ok(value),
        }
    }

    fn operand(&mut self) -> Result<Size, Problem> {
        let start = self.cursor.start();
        if self.cursor.peek() == Some(b'(') {
            self.open(b'(')?;
            let value = self.sum(Place::Bracketed)?;
            self.close(b')')?;
            return Ok(value);
        }
        let word = self.cursor.peek_word();
        if word.is_empty() {
            return Err(self.expected("a size"));
        }
        if matches!(word, "max" | "min") && self.cursor.peek_at(3) == Some(b'(') {
            self.cursor.word();
            self.open(b'(')?;
            self.count_operator(start)?;
            let a = self.sum(Place::Bracketed)?;
            self.expect(b',')?;
            let b = self.sum(Place::Bracketed)?;
            self.close(b')')?;
            return Ok(if word == "max" { a.max(b) } else { a.min(b) });
        }
        self.cursor.word();
        self.symbol(word, (start, self.cursor.end()))
    }
}
