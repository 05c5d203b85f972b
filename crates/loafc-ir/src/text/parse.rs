//! Recursive-descent parser of tensor programs.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::cursor::{Cursor, Number};
use super::error::{ParseError, Problem};
use crate::dtype::DType;
use crate::graph::{
    Arg, Device, Dims, Graph, Input, Node, SourceLine, TensorId, TensorType, Value, ValueType,
    contiguous_strides,
};
use crate::ops::{self, InferError, call::shape_text};
use crate::size::Size;
use crate::verify::shapes_may_be_equal;

/// Parentheses and brackets inside each other; the parser recurses once for each.
const MAX_NESTING: usize = 64;

/// Bytes of a short node; bounds the room made for a text of empty lines.
const SHORTEST_NODE: usize = 16;

/// Words that mean something of their own among arguments, and so can't name a size symbol.
const RESERVED: [&str; 11] =
    ["true", "false", "none", "inf", "nan", "max", "min", "cpu", "cuda", "size", "_"];

/// Where a size stands: it decides what `//` means.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Between brackets of any kind: a division.
    Bracketed,
    /// In a statement: a comment.
    Statement,
}

/// State of one parse.
pub(super) struct Parser<'t> {
    pub(super) cursor: Cursor<'t>,
    /// Operators of the size that is being read.
    pub(super) operators: usize,
    nesting: usize,
    graph: Graph,
    names: FxHashMap<Cow<'t, str>, TensorId>,
    /// Symbols that a `size` line or an input declares.
    declared: FxHashSet<&'t str>,
    /// Symbols met so far.
    symbols: FxHashMap<&'t str, Size>,
    /// Symbols met among the inputs before their declaration, which may stand behind them.
    undeclared: Vec<(&'t str, Span)>,
    in_inputs: bool,
    /// Names of operators, keywords and files, which many nodes have in common.
    shared_names: FxHashMap<Cow<'t, str>, Arc<str>>,
}

type Span = (usize, usize);

/// A result as it stands left of the `=`.
struct ResultText<'t> {
    /// `None` for `_`.
    name: Option<Cow<'t, str>>,
    ty: Option<ValueType>,
    span: Span,
}

/// Reads a tensor program. `file` is only named in errors and in the nodes' origins. Types that are not
/// annotated are inferred.
pub fn parse(text: &str, file: &str) -> Result<Graph, ParseError> {
    let mut parser = Parser {
        cursor: Cursor::new(text),
        operators: 0,
        nesting: 0,
        graph: Graph::default(),
        names: FxHashMap::default(),
        declared: FxHashSet::default(),
        symbols: FxHashMap::default(),
        undeclared: Vec::new(),
        in_inputs: false,
        shared_names: FxHashMap::default(),
    };
    parser.reserve(text);
    match parser.file() {
        Ok(()) => Ok(parser.graph),
        Err(problem) => Err(problem.locate(text, file)),
    }
}

impl<'t> Parser<'t> {
    /// Makes room for a value and a node a line, so that growing lists need not move them.
    fn reserve(&mut self, text: &str) {
        let lines = text.bytes().filter(|b| *b == b'\n').count();
        let nodes = lines.min(text.len() / SHORTEST_NODE);
        self.names.reserve(nodes);
        self.graph.values.reserve(nodes);
        self.graph.nodes.reserve(nodes);
    }

    fn file(&mut self) -> Result<(), Problem> {
        while self.cursor.eat_word("size") {
            self.size_line()?;
        }
        if !self.cursor.eat_word("graph") {
            return Err(self.expected("`size` or `graph`"));
        }
        self.graph_header()?;
        self.expect(b'{')?;
        while !self.cursor.eat_word("return") {
            self.node()?;
        }
        self.outputs()?;
        self.expect(b'}')?;
        if self.cursor.peek().is_some() {
            return Err(self.expected("the end of the file").help("a file holds one graph"));
        }
        Ok(())
    }

    fn size_line(&mut self) -> Result<(), Problem> {
        let name = self.declare_symbol()?;
        if self.cursor.eat(b'=') {
            let hint = self.integer()?;
            self.graph.hints.set(name, hint);
        }
        Ok(())
    }

    fn declare_symbol(&mut self) -> Result<&'t str, Problem> {
        let start = self.cursor.start();
        let name = self.cursor.word();
        if name.is_empty() {
            return Err(self.expected("the name of a size symbol"));
        }
        let span = (start, self.cursor.end());
        self.declare(name, span)?;
        Ok(name)
    }

    fn declare(&mut self, name: &'t str, span: Span) -> Result<(), Problem> {
        if RESERVED.contains(&name) || name.parse::<DType>().is_ok() {
            return Err(Problem::new(
                span,
                format!("`{name}` can't name a size symbol; it has another meaning"),
            ));
        }
        if !self.declared.insert(name) {
            return Err(Problem::new(span, format!("size symbol `{name}` is declared twice")));
        }
        Ok(())
    }

    fn graph_header(&mut self) -> Result<(), Problem> {
        let name = self.sigil_name(b'@', "the name of the graph, `@name`")?;
        self.graph.name = name.as_ref().into();
        self.open(b'(')?;
        self.in_inputs = true;
        while self.cursor.peek() != Some(b')') {
            self.input()?;
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.close(b')')?;
        self.in_inputs = false;
        let undeclared = std::mem::take(&mut self.undeclared);
        match undeclared.into_iter().find(|(name, _)| !self.declared.contains(name)) {
            Some((name, span)) => Err(undeclared_symbol(name, span)),
            None => Ok(()),
        }
    }

    fn input(&mut self) -> Result<(), Problem> {
        if self.cursor.peek() == Some(b'%') {
            let start = self.cursor.start();
            let name = self.sigil_name(b'%', "the name of an input")?;
            let span = (start, self.cursor.end());
            self.expect(b':')?;
            let ty = self.tensor_type()?;
            let id = self.define(name, ValueType::Tensor(ty), span)?;
            self.graph.inputs.push(Input::Tensor(id));
            return Ok(());
        }
        let start = self.cursor.start();
        let (name, span) = if self.cursor.peek() == Some(b'"') {
            let name = self.cursor.string()?;
            (name, (start, self.cursor.end()))
        } else {
            let name = self.cursor.dotted();
            if name.is_empty() {
                return Err(self.expected("an input, `%name: type` or `name: size`"));
            }
            (Cow::Borrowed(name), (start, self.cursor.end()))
        };
        self.expect(b':')?;
        if !self.cursor.eat_word("size") {
            return Err(self.expected("`size`").help("an input that is a tensor has a name with `%`"));
        }
        let symbol = if self.cursor.eat(b'(') {
            let symbol = self.declare_symbol()?;
            self.expect(b')')?;
            symbol
        } else {
            match name {
                Cow::Borrowed(name) if !name.contains('.') && !self.is_quoted(start) => {
                    self.declare(name, span)?;
                    name
                }
                _ => return Err(self.expected("the symbol, `size(s0)`, as the name can't be one")),
            }
        };
        if self.cursor.eat(b'=') {
            let hint = self.integer()?;
            self.graph.hints.set(symbol, hint);
        }
        let size = self.symbol_size(symbol);
        let id = self.define(name, ValueType::Size(size), span)?;
        self.graph.inputs.push(Input::Size(id, symbol.into()));
        Ok(())
    }

    fn is_quoted(&self, start: usize) -> bool {
        self.cursor.byte(start) == Some(b'"')
    }

    fn integer(&mut self) -> Result<i64, Problem> {
        let start = self.cursor.start();
        let negative = self.cursor.eat(b'-');
        if !self.cursor.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.expected("an integer"));
        }
        match self.cursor.number(negative)? {
            Number::Int(value) => Ok(value),
            Number::Float(_) => Err(Problem::new((start, self.cursor.end()), "this must be an integer")),
        }
    }

    fn define(&mut self, name: Cow<'t, str>, ty: ValueType, span: Span) -> Result<TensorId, Problem> {
        if let ValueType::Tensor(ty) = &ty
            && let Err(error) = ty.check()
        {
            let message = format!("%{name} can't be {}{}: {error}", ty.dtype, shape_text(&ty.shape));
            return Err(Problem::new(span, message));
        }
        let id = TensorId(self.graph.values.len() as u32);
        let shared: Arc<str> = name.as_ref().into();
        match self.names.entry(name) {
            Entry::Occupied(taken) => {
                let message = format!("%{} is defined twice", taken.key());
                return Err(Problem::new(span, message).help("every value needs a name of its own"));
            }
            Entry::Vacant(free) => free.insert(id),
        };
        self.graph.values.push(Value { name: shared, ty });
        Ok(id)
    }

    fn value_type(&mut self) -> Result<ValueType, Problem> {
        if !self.cursor.eat_word("size") {
            return self.tensor_type().map(ValueType::Tensor);
        }
        self.open(b'(')?;
        let start = self.cursor.start();
        let word = self.cursor.peek_word();
        // A result that is a symbol alone is what binds that symbol.
        if !word.is_empty() && self.cursor.peek_at(word.len()) == Some(b')') && !self.declared.contains(word)
        {
            self.declare(word, (start, start + word.len()))?;
        }
        let size = self.size(Place::Bracketed)?;
        self.close(b')')?;
        Ok(ValueType::Size(size))
    }

    fn tensor_type(&mut self) -> Result<TensorType, Problem> {
        let start = self.cursor.start();
        let name = self.cursor.peek_word();
        if name.is_empty() {
            return Err(self.expected("an element type"));
        }
        let dtype = name.parse().map_err(|e: crate::dtype::UnknownDType| {
            Problem::new((start, start + name.len()), e.to_string())
        })?;
        self.cursor.word();
        let shape = self.sizes()?;
        let strides_at = self.cursor.start();
        let strides =
            if self.cursor.eat_word("strides") { self.sizes()? } else { contiguous_strides(&shape) };
        if strides.len() != shape.len() {
            let message = format!("{} strides for a tensor of {} dimensions", strides.len(), shape.len());
            return Err(Problem::new((strides_at, self.cursor.end()), message));
        }
        let device = if self.cursor.eat_word("device") { self.device()? } else { Device::Cpu };
        Ok(TensorType { dtype, shape, strides, device })
    }

    fn sizes(&mut self) -> Result<Dims, Problem> {
        let mut sizes = Dims::new();
        self.open(b'[')?;
        while self.cursor.peek() != Some(b']') {
            sizes.push(self.size(Place::Bracketed)?);
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.close(b']')?;
        Ok(sizes)
    }

    fn device(&mut self) -> Result<Device, Problem> {
        if self.cursor.eat_word("cpu") {
            return Ok(Device::Cpu);
        }
        if !self.cursor.eat_word("cuda") {
            return Err(self.expected("a device, `cpu` or `cuda:0`"));
        }
        self.expect(b':')?;
        let start = self.cursor.start();
        let number = self.integer()?;
        u16::try_from(number)
            .map(Device::Cuda)
            .map_err(|_| Problem::new((start, self.cursor.end()), "there is no device of this number"))
    }

    fn node(&mut self) -> Result<(), Problem> {
        let start = self.cursor.start();
        let results = self.results()?;
        let op_at = self.cursor.start();
        let op = self.operator()?;
        let op_span = (op_at, self.cursor.end());
        self.open(b'(')?;
        let (args, kwargs) = self.arguments()?;
        self.close(b')')?;
        let end = self.cursor.end();
        let origin = self.origin()?;
        let types = self.result_types(&op, &args, &kwargs, &results, (op_span.0, end))?;
        let mut ids = Vec::with_capacity(results.len());
        for (result, ty) in results.into_iter().zip(types) {
            ids.push(match (result.name, ty) {
                (Some(name), Some(ty)) => Some(self.define(name, ty, result.span)?),
                _ => None,
            });
        }
        self.graph.nodes.push(Node { op, args, kwargs, results: ids, origin, span: Some((start, end)) });
        Ok(())
    }

    /// `%a: type, _ =`, or nothing.
    fn results(&mut self) -> Result<Vec<ResultText<'t>>, Problem> {
        let mut results = Vec::new();
        if self.cursor.peek() != Some(b'%') && self.cursor.peek_word() != "_" {
            return Ok(results);
        }
        loop {
            let start = self.cursor.start();
            let name = if self.cursor.eat_word("_") {
                None
            } else {
                Some(self.sigil_name(b'%', "a result, `%name` or `_`")?)
            };
            let span = (start, self.cursor.end());
            let ty = if self.cursor.eat(b':') { Some(self.value_type()?) } else { None };
            results.push(ResultText { name, ty, span });
            if !self.cursor.eat(b',') {
                self.expect(b'=')?;
                return Ok(results);
            }
        }
    }

    fn operator(&mut self) -> Result<Arc<str>, Problem> {
        let name = if self.cursor.peek() == Some(b'"') {
            self.cursor.string()?
        } else {
            Cow::Borrowed(self.cursor.dotted())
        };
        if name.is_empty() {
            return Err(self.expected("an operator or `return`"));
        }
        Ok(self.shared(name))
    }

    /// One allocation for equal names of operators, keywords and files.
    fn shared(&mut self, name: Cow<'t, str>) -> Arc<str> {
        if let Some(shared) = self.shared_names.get(&name) {
            return shared.clone();
        }
        let shared: Arc<str> = name.as_ref().into();
        self.shared_names.insert(name, shared.clone());
        shared
    }

    #[allow(clippy::type_complexity)]
    fn arguments(&mut self) -> Result<(Vec<Arg>, Vec<(Arc<str>, Arg)>), Problem> {
        let (mut args, mut kwargs) = (Vec::new(), Vec::<(Arc<str>, Arg)>::new());
        while self.cursor.peek() != Some(b')') {
            let start = self.cursor.start();
            if let Some(keyword) = self.keyword() {
                if kwargs.iter().any(|(name, _)| name.as_ref() == keyword) {
                    let span = (start, start + keyword.len());
                    return Err(Problem::new(span, format!("keyword argument `{keyword}` is given twice")));
                }
                let value = self.argument(Place::Bracketed)?;
                kwargs.push((self.shared(Cow::Borrowed(keyword)), value));
            } else {
                let value = self.argument(Place::Bracketed)?;
                if !kwargs.is_empty() {
                    let message = "a positional argument can't stand behind a keyword argument";
                    return Err(Problem::new((start, self.cursor.end()), message));
                }
                args.push(value);
            }
            if !self.cursor.eat(b',') {
                break;
            }
        }
        Ok((args, kwargs))
    }

    /// Takes `name=` if it comes next.
    fn keyword(&mut self) -> Option<&'t str> {
        let mut ahead = self.cursor.clone();
        let word = ahead.word();
        if word.is_empty() || !ahead.eat(b'=') {
            return None;
        }
        self.cursor = ahead;
        Some(word)
    }

    fn argument(&mut self, place: Place) -> Result<Arg, Problem> {
        match self.cursor.peek() {
            Some(b'%') => self.value().map(Arg::Value),
            Some(b'"') => Ok(Arg::Str(self.cursor.string()?.as_ref().into())),
            Some(b'[') => self.list(),
            Some(b'-' | b'0'..=b'9') => self.number(place),
            Some(b) if super::cursor::is_word_start(b) => self.word_argument(place),
            Some(b'(') => self.size(place).map(Arg::Size),
            _ => Err(self.expected("an argument")),
        }
    }

    fn list(&mut self) -> Result<Arg, Problem> {
        let mut items = Vec::new();
        self.open(b'[')?;
        while self.cursor.peek() != Some(b']') {
            items.push(self.argument(Place::Bracketed)?);
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.close(b']')?;
        Ok(Arg::List(items))
    }

    /// A float, or a size that begins with a digit or a sign.
    fn number(&mut self, place: Place) -> Result<Arg, Problem> {
        let mut ahead = self.cursor.clone();
        let negative = ahead.eat(b'-');
        let infinite = negative && ahead.eat_word("inf");
        if infinite {
            self.cursor = ahead;
            return Ok(Arg::Float(f64::NEG_INFINITY));
        }
        if ahead.peek().is_some_and(|b| b.is_ascii_digit())
            && let Number::Float(value) = ahead.number(negative)?
        {
            self.cursor = ahead;
            return Ok(Arg::Float(value));
        }
        self.size(place).map(Arg::Size)
    }

    fn word_argument(&mut self, place: Place) -> Result<Arg, Problem> {
        let word = self.cursor.peek_word();
        let constant = match word {
            "true" => Arg::Bool(true),
            "false" => Arg::Bool(false),
            "none" => Arg::None,
            "inf" => Arg::Float(f64::INFINITY),
            "nan" => Arg::Float(f64::NAN),
            "cpu" | "cuda" => return self.device().map(Arg::Device),
            _ if self.symbols.contains_key(word) => return self.size(place).map(Arg::Size),
            _ => match word.parse() {
                Ok(dtype) => Arg::DType(dtype),
                Err(_) => return self.size(place).map(Arg::Size),
            },
        };
        self.cursor.word();
        Ok(constant)
    }

    fn value(&mut self) -> Result<TensorId, Problem> {
        let start = self.cursor.start();
        let name = self.sigil_name(b'%', "a value, `%name`")?;
        self.names.get(&name).copied().ok_or_else(|| {
            let span = (start, self.cursor.end());
            Problem::new(span, format!("%{name} is not defined"))
                .help("a value must be defined before the line that uses it")
        })
    }

    /// `%name` or `%"any name"`, with `@` for graphs.
    fn sigil_name(&mut self, sigil: u8, what: &str) -> Result<Cow<'t, str>, Problem> {
        if !self.cursor.eat(sigil) {
            return Err(self.expected(what));
        }
        if self.cursor.byte(self.cursor.end()) == Some(b'"') {
            return self.cursor.string();
        }
        let name = self.cursor.sigil_name();
        if name.is_empty() {
            let help =
                "a name is made of letters, digits, `_` and `.`; any other stands in quotes, `%\"ä b\"`";
            return Err(self.expected(what).help(help));
        }
        Ok(Cow::Borrowed(name))
    }

    fn origin(&mut self) -> Result<Option<SourceLine>, Problem> {
        if self.cursor.peek_word() != "loc" || self.cursor.peek_at(3) != Some(b'(') {
            return Ok(None);
        }
        self.cursor.word();
        self.expect(b'(')?;
        if self.cursor.peek() != Some(b'"') {
            return Err(self.expected("the name of a file in quotes"));
        }
        let name = self.cursor.string()?;
        self.expect(b':')?;
        let start = self.cursor.start();
        let line = self.integer()?;
        let line = u32::try_from(line)
            .map_err(|_| Problem::new((start, self.cursor.end()), "there is no line of this number"))?;
        self.expect(b')')?;
        Ok(Some(SourceLine { file: self.shared(name), line }))
    }

    fn outputs(&mut self) -> Result<(), Problem> {
        while self.cursor.peek() != Some(b'}') {
            let output = self.argument(Place::Statement)?;
            self.graph.outputs.push(output);
            if !self.cursor.eat(b',') {
                break;
            }
        }
        Ok(())
    }

    /// The type of each result: inferred, and where it is annotated, checked against that. A call whose types can't be
    /// inferred needs annotations.
    fn result_types(
        &self,
        op: &Arc<str>,
        args: &[Arg],
        kwargs: &[(Arc<str>, Arg)],
        results: &[ResultText],
        span: Span,
    ) -> Result<Vec<Option<ValueType>>, Problem> {
        let values = &self.graph.values;
        let value_type = |id: TensorId| values[id.0 as usize].ty.clone();
        let inferred = match ops::infer(op, args, kwargs, &value_type) {
            Ok(inferred) => inferred,
            Err(error) if ops::needs_annotations(&error) => {
                let is_annotated = |r: &ResultText| r.name.is_none() || r.ty.is_some();
                return match results.iter().all(is_annotated) {
                    true => Ok(results.iter().map(|r| r.ty.clone()).collect()),
                    false => Err(needed_annotation(op, &error, span)),
                };
            }
            Err(error) => return Err(Problem::new(span, error.to_string())),
        };
        if inferred.len() != results.len() && !results.is_empty() {
            let message = format!("`{op}` has {} results, not {}", inferred.len(), results.len());
            return Err(Problem::new(span, message).help("write `_` for a result that is not used"));
        }
        results
            .iter()
            .zip(inferred)
            .map(|(result, inferred)| check_annotation(op, result, inferred))
            .collect()
    }

    /// The size of a symbol, which must be declared.
    pub(super) fn symbol(&mut self, name: &'t str, span: Span) -> Result<Size, Problem> {
        if let Some(size) = self.symbols.get(name) {
            return Ok(*size);
        }
        if !self.declared.contains(name) {
            if !self.in_inputs || RESERVED.contains(&name) {
                return Err(undeclared_symbol(name, span));
            }
            self.undeclared.push((name, span));
        }
        Ok(self.symbol_size(name))
    }

    fn symbol_size(&mut self, name: &'t str) -> Size {
        *self.symbols.entry(name).or_insert_with(|| Size::symbol(name))
    }

    /// Takes an opening bracket.
    pub(super) fn open(&mut self, bracket: u8) -> Result<(), Problem> {
        let start = self.cursor.start();
        self.expect(bracket)?;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            let message = format!("brackets are nested more than {MAX_NESTING} deep");
            return Err(Problem::new((start, self.cursor.end()), message));
        }
        Ok(())
    }

    /// Takes a closing bracket.
    pub(super) fn close(&mut self, bracket: u8) -> Result<(), Problem> {
        if !self.cursor.eat(bracket) {
            return Err(self.expected(&format!("`,` or `{}`", char::from(bracket))));
        }
        self.nesting -= 1;
        Ok(())
    }

    pub(super) fn expect(&mut self, byte: u8) -> Result<(), Problem> {
        if self.cursor.eat(byte) {
            return Ok(());
        }
        Err(self.expected(&format!("`{}`", char::from(byte))))
    }

    /// An error at the next token, which is something else.
    pub(super) fn expected(&mut self, what: &str) -> Problem {
        let (span, found) = self.cursor.describe_next();
        Problem::new(span, format!("expected {what}, found {found}"))
    }
}

fn needed_annotation(op: &str, error: &InferError, span: Span) -> Problem {
    let library = "a call into a library needs the types of its results, `%name: f32[2, 3] = ...`";
    match error {
        InferError::UnknownOperator { .. } => {
            let meant = ops::closest(op).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            Problem::new(span, format!("operator `{op}` is unknown")).help(format!("{meant}{library}"))
        }
        other => Problem::new(span, other.to_string()).help(library),
    }
}

fn undeclared_symbol(name: &str, span: Span) -> Problem {
    Problem::new(span, format!("size symbol `{name}` is not declared"))
        .help(format!("add a line `size {name}` before the graph, or an input `{name}: size`"))
}

fn check_annotation(
    op: &str,
    result: &ResultText,
    inferred: Option<TensorType>,
) -> Result<Option<ValueType>, Problem> {
    let wrong = |what: String| Err(Problem::new(result.span, what));
    let (annotated, inferred) = match (&result.ty, inferred) {
        (None, Some(inferred)) => return Ok(Some(ValueType::Tensor(inferred))),
        (None, None) if result.name.is_none() => return Ok(None),
        (_, None) => return wrong(format!("this result of `{op}` is none; write `_` for it")),
        (Some(ValueType::Size(_)), Some(_)) => return wrong(format!("this result of `{op}` is a tensor")),
        (Some(ValueType::Tensor(annotated)), Some(inferred)) => (annotated, inferred),
    };
    let fits = annotated.dtype == inferred.dtype && shapes_may_be_equal(&annotated.shape, &inferred.shape);
    if fits {
        return Ok(result.ty.clone());
    }
    let text = |t: &TensorType| format!("{}{:?}", t.dtype, t.shape);
    wrong(format!("the result of `{op}` is {}, not {}", text(&inferred), text(annotated)))
}
