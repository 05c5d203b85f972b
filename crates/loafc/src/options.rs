//! What a user can set, by name. Names are TorchInductor's where they mean the same; the command line, Python and
//! the environment all go through the one table here.

use std::env::VarError;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use loafc_codegen::kernel::CodegenOptions;
use loafc_fuse::FuseOptions;

/// Settings of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the final round runs: fusions that need another loop order.
    pub loop_ordering_after_fusion: bool,
    /// Whether reductions over different loops may share one pass through partial results.
    pub mixed_reduction_orders: bool,
    /// Most loop nests in one kernel.
    pub max_fusion_size: usize,
    /// Fusions that save fewer bytes than this are not made.
    pub score_fusion_memory_threshold: i64,
    /// Stop after this many fusions, to bisect a wrong result.
    pub stop_after_fusion: Option<usize>,
    /// Take candidates in random order from this seed, to test that results stay right whatever is fused first.
    pub fusion_chaos_seed: Option<u64>,
    /// Threads that run kernels; `None` for as many as the machine runs at once. Inside PyTorch its number of threads
    /// counts instead.
    pub threads: Option<NonZeroUsize>,
    /// Threads that compile kernels; `None` for as many as the machine runs at once.
    pub compile_threads: Option<NonZeroUsize>,
    /// Width of vector registers to use, in bits; `None` for the widest of this machine.
    pub vector_bits: Option<u32>,
    /// Whether a front end runs a program in its own way when it can't be compiled.
    pub fallback: bool,
    /// Whether each pass's result is verified. Costs compile time; on in debug builds.
    pub verify: bool,
    /// Where machine code is kept for other processes.
    pub cache_dir: CacheFolder,
    /// Most mebibytes of machine code to keep there.
    pub cache_mib: u64,
    /// Folder into which each program's text, report and kernels are written.
    pub debug_dir: Option<PathBuf>,
}

/// A folder for machine code; see [`crate::disk_cache`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheFolder {
    /// None: each process compiles anew. A library's default.
    #[default]
    Off,
    /// The user's cache folder, where there is one that only the user can write to.
    Standard,
    /// This one. The report warns if it can't be used.
    At(PathBuf),
}

impl Default for Options {
    fn default() -> Self {
        let fuse = FuseOptions::default();
        Options {
            loop_ordering_after_fusion: fuse.loop_ordering_after_fusion,
            mixed_reduction_orders: fuse.mixed_reduction_orders,
            max_fusion_size: fuse.max_fusion_size,
            score_fusion_memory_threshold: fuse.score_fusion_memory_threshold,
            stop_after_fusion: fuse.stop_after_fusion,
            fusion_chaos_seed: fuse.fusion_chaos_seed,
            threads: None,
            compile_threads: None,
            vector_bits: None,
            fallback: true,
            verify: cfg!(debug_assertions),
            cache_dir: CacheFolder::Off,
            cache_mib: 256,
            debug_dir: None,
        }
    }
}

/// An option can't be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no option of this name.
    #[error("unknown option `{name}`{}; known options are {}", suggestion(.name), known_names())]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The value is not of the kind that the option takes.
    #[error("option `{name}`: expected {expected}, got `{value}`")]
    Value {
        /// The option.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What was given.
        value: String,
    },
    /// Two names of one option were given, such as `a-b` and `a_b`.
    #[error("option `{name}` is given twice")]
    Twice {
        /// The option.
        name: &'static str,
    },
    /// A variable of the environment is no text.
    #[error("environment variable {variable} is not UTF-8 text")]
    NoText {
        /// The variable.
        variable: String,
    },
    /// A variable of the environment holds a bad value.
    #[error("environment variable {variable}: {source}")]
    Environment {
        /// The variable.
        variable: String,
        /// What is wrong.
        source: Box<OptionError>,
    },
}

/// One option as front ends list it.
pub struct OptionInfo {
    /// Its name.
    pub name: &'static str,
    /// What it takes, in words.
    pub expected: &'static str,
    set: fn(&mut Options, &str) -> Option<()>,
    get: fn(&Options) -> String,
}

const BOOL: &str = "true or false";
const COUNT: &str = "a whole number, 0 or more";
const OPTIONAL_COUNT: &str = "a whole number, 0 or more, or none";
const THREADS: &str = "a whole number from 1 to 1024, or none";
/// More would only run out of what the system gives a process.
const MOST_THREADS: usize = 1024;

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn optional<T: std::str::FromStr>(text: &str) -> Option<Option<T>> {
    if text.eq_ignore_ascii_case("none") { Some(None) } else { text.parse().ok().map(Some) }
}

fn text_of<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "none".to_owned(), T::to_string)
}

macro_rules! option {
    ($name:ident, $expected:expr, $parse:expr, $show:expr) => {
        OptionInfo {
            name: stringify!($name),
            expected: $expected,
            set: |options, text| {
                options.$name = $parse(text)?;
                Some(())
            },
            get: |options| $show(&options.$name),
        }
    };
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn positive(text: &str) -> Option<usize> {
    number(text).filter(|n| *n > 0)
}

fn byte_count(text: &str) -> Option<i64> {
    number(text).filter(|n| *n >= 0)
}

fn thread_count(text: &str) -> Option<Option<NonZeroUsize>> {
    optional::<NonZeroUsize>(text).filter(|threads| threads.is_none_or(|n| n.get() <= MOST_THREADS))
}

/// The option of this name, in which `-` counts as `_`.
fn named(name: &str) -> Option<&'static OptionInfo> {
    let plain = name.replace('-', "_");
    TABLE.iter().find(|o| o.name == plain)
}

fn vector_width(text: &str) -> Option<Option<u32>> {
    optional::<u32>(text).filter(|bits| bits.is_none_or(|b| matches!(b, 128 | 256 | 512)))
}

fn folder(text: &str) -> Option<Option<PathBuf>> {
    Some((!text.is_empty() && !text.eq_ignore_ascii_case("none")).then(|| path(text)))
}

/// The path of a text in which a leading `~` stands for the user's home, as in a shell.
fn path(text: &str) -> PathBuf {
    let below_home = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (below_home, std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(text),
    }
}

fn cache_folder(text: &str) -> Option<CacheFolder> {
    Some(match text {
        "" => return None,
        _ if text.eq_ignore_ascii_case("none") => CacheFolder::Off,
        _ if text.eq_ignore_ascii_case("standard") => CacheFolder::Standard,
        _ => CacheFolder::At(path(text)),
    })
}

fn cache_folder_text(folder: &CacheFolder) -> String {
    match folder {
        CacheFolder::Off => "none".to_owned(),
        CacheFolder::Standard => "standard".to_owned(),
        CacheFolder::At(path) => path.display().to_string(),
    }
}

static TABLE: [OptionInfo; 14] = [
    option!(loop_ordering_after_fusion, BOOL, boolean, bool::to_string),
    option!(mixed_reduction_orders, BOOL, boolean, bool::to_string),
    option!(max_fusion_size, "a whole number, 1 or more", positive, usize::to_string),
    option!(score_fusion_memory_threshold, "a whole number of bytes, 0 or more", byte_count, i64::to_string),
    option!(stop_after_fusion, OPTIONAL_COUNT, optional, text_of),
    option!(fusion_chaos_seed, OPTIONAL_COUNT, optional, text_of),
    option!(threads, THREADS, thread_count, text_of),
    option!(compile_threads, THREADS, thread_count, text_of),
    option!(vector_bits, "128, 256, 512 or none", vector_width, text_of),
    option!(fallback, BOOL, boolean, bool::to_string),
    option!(verify, BOOL, boolean, bool::to_string),
    option!(cache_dir, "none, standard or a folder", cache_folder, cache_folder_text),
    option!(cache_mib, COUNT, number, u64::to_string),
    option!(debug_dir, "a folder or none", folder, |dir: &Option<PathBuf>| dir
        .as_ref()
        .map_or_else(|| "none".to_owned(), |d| d.display().to_string())),
];

/// Variables that are no options: what `LOAFC_DEBUG` stands for is up to the front end, the others are the tests'.
const OTHER_VARIABLES: [&str; 5] =
    ["LOAFC_DEBUG", "LOAFC_RANDOM_FAILURES", "LOAFC_RANDOM_PROGRAMS", "LOAFC_RANDOM_SEED", "LOAFC_ZOO_SCALE"];

fn variable_of(option: &OptionInfo) -> String {
    format!("LOAFC_{}", option.name.to_ascii_uppercase())
}

fn warning_of(names: impl Iterator<Item = String>) -> Option<String> {
    let is_known = |name: &str| {
        OTHER_VARIABLES.contains(&name) || TABLE.iter().any(|option| variable_of(option) == name)
    };
    let mut unknown: Vec<String> = names.filter(|n| n.starts_with("LOAFC_") && !is_known(n)).collect();
    if unknown.is_empty() {
        return None;
    }
    unknown.sort_unstable();
    let known: Vec<String> = TABLE.iter().map(variable_of).chain(["LOAFC_DEBUG".to_owned()]).collect();
    let close: Vec<&str> =
        unknown.iter().filter_map(|name| closest(name, known.iter().map(String::as_str))).collect();
    let hint =
        if close.is_empty() { String::new() } else { format!(" (did you mean {}?)", close.join(", ")) };
    let (unknown, known) = (unknown.join(", "), known.join(", "));
    Some(format!("nothing reads {unknown} of the environment{hint}; known are {known}"))
}

fn known_names() -> String {
    TABLE.iter().map(|o| o.name).collect::<Vec<_>>().join(", ")
}

/// `, did you mean …?` for a name that is close to a known one.
fn suggestion(name: &str) -> String {
    closest(name, TABLE.iter().map(|option| option.name))
        .map_or_else(String::new, |known| format!(", did you mean `{known}`?"))
}

/// The known name that most likely was meant, if any is close.
fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, known) = known.map(|known| (edit_distance(name, known), known)).min()?;
    (distance <= known.len() / 3).then_some(known)
}

/// Fewest characters to insert, remove or replace to get from one text to the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

impl Options {
    /// All options, in the order in which they are listed.
    pub fn known() -> &'static [OptionInfo] {
        &TABLE
    }

    /// Sets options from texts by name, as [`Options::set`] does, none of them twice.
    ///
    /// # Errors
    /// As there, and when two of the names mean one option.
    pub fn set_all<'a>(
        &mut self,
        texts: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), OptionError> {
        let mut given = Vec::new();
        for (name, text) in texts {
            self.set(name, text)?;
            if let Some(option) = named(name) {
                if given.contains(&option.name) {
                    return Err(OptionError::Twice { name: option.name });
                }
                given.push(option.name);
            }
        }
        Ok(())
    }

    /// Sets the option of this name from text; `-` in the name counts as `_`.
    ///
    /// # Errors
    /// When there is no such option, or the text is not of its kind.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), OptionError> {
        let Some(option) = named(name) else {
            return Err(OptionError::Unknown { name: name.to_owned() });
        };
        (option.set)(self, text.trim()).ok_or_else(|| OptionError::Value {
            name: option.name,
            expected: option.expected,
            value: text.to_owned(),
        })
    }

    /// The value of the option of this name, as text that [`Options::set`] reads.
    pub fn get(&self, name: &str) -> Option<String> {
        TABLE.iter().find(|o| o.name == name).map(|o| (o.get)(self))
    }

    /// The defaults, changed by the environment as in [`Options::with_env`].
    ///
    /// # Errors
    /// As there.
    pub fn from_env() -> Result<Options, OptionError> {
        Options::default().with_env()
    }

    /// These options, changed by those of the variables `LOAFC_<NAME OF THE OPTION>` that are set and not empty.
    ///
    /// # Errors
    /// When a variable's value is not of its option's kind.
    pub fn with_env(self) -> Result<Options, OptionError> {
        self.with_variables(&|name| std::env::var(name))
    }

    fn with_variables(self, read: &dyn Fn(&str) -> Result<String, VarError>) -> Result<Options, OptionError> {
        let mut options = self;
        for option in &TABLE {
            let variable = variable_of(option);
            let text = match read(&variable) {
                Ok(text) if !text.is_empty() => text,
                Ok(_) | Err(VarError::NotPresent) => continue,
                Err(VarError::NotUnicode(_)) => return Err(OptionError::NoText { variable }),
            };
            options
                .set(option.name, &text)
                .map_err(|e| OptionError::Environment { variable, source: Box::new(e) })?;
        }
        Ok(options)
    }

    /// What to tell a user whose environment sets `LOAFC_...` variables that nothing reads; None if there are none.
    pub fn warning_of_unknown_variables() -> Option<String> {
        warning_of(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    }

    /// The scheduler's part.
    pub(crate) fn fuse(&self) -> FuseOptions {
        FuseOptions {
            loop_ordering_after_fusion: self.loop_ordering_after_fusion,
            mixed_reduction_orders: self.mixed_reduction_orders,
            max_fusion_size: self.max_fusion_size,
            score_fusion_memory_threshold: self.score_fusion_memory_threshold,
            stop_after_fusion: self.stop_after_fusion,
            fusion_chaos_seed: self.fusion_chaos_seed,
            limits: loafc_fuse::options::Limits::default(),
        }
    }

    /// Code generation's part.
    pub(crate) fn codegen(&self) -> CodegenOptions {
        CodegenOptions {
            threads: self.compile_threads.map_or(0, NonZeroUsize::get),
            vector_bits: self.vector_bits,
            keep_text: self.debug_dir.is_some(),
            ..CodegenOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reads_back_what_it_shows() {
        let mut options = Options::default();
        for option in Options::known() {
            let shown = options.get(option.name).unwrap();
            options.set(option.name, &shown).unwrap();
        }
        assert_eq!(options, Options::default());
    }

    #[test]
    fn a_leading_tilde_is_the_users_home() {
        let home = std::env::home_dir().unwrap();
        let mut options = Options::default();
        for (text, folder) in [
            ("~/x", home.join("x")),
            ("~", home),
            ("~other/x", PathBuf::from("~other/x")),
            ("a/~", PathBuf::from("a/~")),
        ] {
            options.set("cache_dir", text).unwrap();
            options.set("debug_dir", text).unwrap();
            assert_eq!(options.cache_dir, CacheFolder::At(folder.clone()));
            assert_eq!(options.debug_dir, Some(folder));
        }
    }

    #[test]
    fn values_of_each_kind_are_set() {
        let mut options = Options::default();
        options.set("loop-ordering-after-fusion", "0").unwrap();
        options.set("stop_after_fusion", " 3 ").unwrap();
        options.set("fusion_chaos_seed", "none").unwrap();
        options.set("debug_dir", "out/dir").unwrap();
        assert!(!options.loop_ordering_after_fusion);
        assert_eq!(options.stop_after_fusion, Some(3));
        assert_eq!(options.debug_dir, Some(PathBuf::from("out/dir")));
    }

    #[test]
    fn an_unknown_name_gets_the_closest_one_and_the_list() {
        let message = Options::default().set("max_fuson_size", "3").unwrap_err().to_string();
        assert!(
            message.starts_with("unknown option `max_fuson_size`, did you mean `max_fusion_size`?"),
            "{message}"
        );
        assert!(message.contains("score_fusion_memory_threshold"), "{message}");
        let message = Options::default().set("zzz", "3").unwrap_err().to_string();
        assert!(message.starts_with("unknown option `zzz`; known options are loop_ordering"), "{message}");
    }

    #[test]
    fn a_bad_value_says_what_is_expected() {
        let no_bools = ["maybe", "2", "1.0", ""];
        let no_threads = ["0", "-1", "1025", "100000", "2.0", "true", "many", ""];
        let bad: [(&str, &[&str]); 14] = [
            ("loop_ordering_after_fusion", &no_bools),
            ("mixed_reduction_orders", &no_bools),
            ("max_fusion_size", &["0", "-1", "1.5", "none", "99999999999999999999"]),
            ("score_fusion_memory_threshold", &["-1", "10.0", "none", "99999999999999999999"]),
            ("stop_after_fusion", &["-1", "x", "99999999999999999999"]),
            ("fusion_chaos_seed", &["-1", "x", "99999999999999999999"]),
            ("threads", &no_threads),
            ("compile_threads", &no_threads),
            ("vector_bits", &["100", "0", "-128", "1024", "wide"]),
            ("fallback", &no_bools),
            ("verify", &no_bools),
            ("cache_dir", &[""]),
            ("cache_mib", &["-1", "1.5", "none", "1e3"]),
            // Every text is a folder; whether it can be written to shows when it is.
            ("debug_dir", &[]),
        ];
        assert_eq!(bad.map(|(name, _)| name).as_slice(), TABLE.each_ref().map(|o| o.name).as_slice());
        for (option, (name, values)) in TABLE.iter().zip(bad) {
            for value in values {
                let mut options = Options::default();
                let expected = format!("option `{name}`: expected {}, got `{value}`", option.expected);
                assert_eq!(options.set(name, value).map_err(|e| e.to_string()), Err(expected));
                assert_eq!(options, Options::default());
            }
        }
    }

    #[test]
    fn two_names_of_one_option_are_refused() {
        let error = Options::default().set_all([("cache-mib", "1"), ("threads", "2"), ("cache_mib", "3")]);
        assert_eq!(error, Err(OptionError::Twice { name: "cache_mib" }));
        let mut options = Options::default();
        options.set_all([("cache-mib", "1"), ("threads", "2")]).unwrap();
        assert_eq!((options.cache_mib, options.threads), (1, NonZeroUsize::new(2)));
    }

    #[test]
    fn variables_that_nothing_reads_are_told_with_those_that_are_known() {
        let warning = |names: &[&str]| warning_of(names.iter().map(|n| (*n).to_owned()));
        assert_eq!(warning(&["PATH", "LOAFC_DEBUG", "LOAFC_THREADS", "loafc_x"]), None);
        let message = warning(&["LOAFC_ZZZ", "LOAFC_THREAD"]).unwrap();
        let told =
            "nothing reads LOAFC_THREAD, LOAFC_ZZZ of the environment (did you mean LOAFC_THREADS?); known";
        assert!(message.starts_with(told), "{message}");
        assert!(message.contains("LOAFC_THREADS") && message.ends_with("LOAFC_DEBUG"), "{message}");
    }

    #[test]
    fn the_environment_sets_options_and_its_errors_name_the_variable() {
        let with = |variable: &str, value: Result<&str, VarError>| {
            let read = |name: &str| match name == variable {
                true => value.clone().map(str::to_owned),
                false => Err(VarError::NotPresent),
            };
            Options::default().with_variables(&read)
        };
        assert_eq!(with("LOAFC_MAX_FUSION_SIZE", Ok("7")).unwrap().max_fusion_size, 7);
        assert_eq!(with("LOAFC_THREADS", Ok("")), Ok(Options::default()));
        let message = with("LOAFC_THREADS", Ok("many")).unwrap_err().to_string();
        assert!(message.starts_with("environment variable LOAFC_THREADS: option `threads`"), "{message}");
        let no_text = with("LOAFC_CACHE_DIR", Err(VarError::NotUnicode("x".into()))).unwrap_err();
        assert_eq!(no_text.to_string(), "environment variable LOAFC_CACHE_DIR is not UTF-8 text");
    }
}
