//! Machine code on disk, so that a second process compiles nothing.
//!
//! An entry is one file that is named by the key of its code and holds a checksum of it. It is written beside its
//! place and renamed, so that a process that dies leaves no half entry, and any number of processes may write the
//! same one. What is damaged, cut short or of another format counts as absent and is written anew. The folder is its
//! user's alone: whoever can write into it could make others run their code.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use loafc_codegen::code::{ObjectKey, ObjectStore};
use sha2::{Digest, Sha256};

/// What an entry begins with; the digit is the version of the format.
const MAGIC: [u8; 8] = *b"loafc\0\0\x01";
/// Magic, key, checksum.
const HEADER: usize = 8 + 32 + 32;
/// Folders that entries are spread over, by the first byte of their key. Each keeps to its share of the limit, so that
/// making room means to look at one of them.
const SHARDS: u64 = 64;
/// A file that was begun this long ago and has no name yet belongs to a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// An entry's time of last use is not written more often than this.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// Why a folder can't hold machine code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The system refused.
    #[error("{}: {source}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others could put code into it.
    #[error(
        "{} {what}, so others could have put code into it that you would run; choose a folder that only you can write to",
        folder.display()
    )]
    NotPrivate {
        /// The folder.
        folder: PathBuf,
        /// Whose it is, or who can write to it.
        what: String,
    },
}

/// A folder of object files; see the module.
#[derive(Debug)]
pub struct DiskCache {
    folder: PathBuf,
    limit: u64,
    /// Why an entry could not be written, of the first that could not.
    failure: OnceLock<io::Error>,
}

/// `$XDG_CACHE_HOME/loafc`, or `~/.cache/loafc`; `None` for a user without a home.
pub fn standard_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("loafc"))
}

impl DiskCache {
    /// Opens a folder, which is made if it does not exist; entries take up to `limit` bytes.
    ///
    /// # Errors
    /// When the folder can't be made or read, or when somebody else owns it or can write to it.
    pub fn open(folder: &Path, limit: u64) -> Result<DiskCache, CacheError> {
        let failed = |source| CacheError::Io { folder: folder.to_owned(), source };
        make_folder(folder).map_err(failed)?;
        let about = fs::metadata(folder).map_err(failed)?;
        // SAFETY: geteuid has no preconditions and never fails.
        let user = unsafe { libc::geteuid() };
        let what = match () {
            _ if !about.is_dir() => return Err(failed(io::ErrorKind::NotADirectory.into())),
            _ if about.uid() != user => format!("belongs to user {}", about.uid()),
            _ if about.mode() & 0o022 != 0 => {
                format!("can be written to by others (mode {:o})", about.mode() & 0o777)
            }
            _ => return Ok(DiskCache { folder: folder.to_owned(), limit, failure: OnceLock::new() }),
        };
        Err(CacheError::NotPrivate { folder: folder.to_owned(), what })
    }

    /// Why entries could not be written, if some could not.
    pub fn failure(&self) -> Option<String> {
        self.failure.get().map(|error| format!("{}: {error}", self.folder.display()))
    }

    fn shard(&self, key: &ObjectKey) -> PathBuf {
        self.folder.join(format!("{:02x}", u64::from(key.0[0]) % SHARDS))
    }

    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.shard(key).join(key.to_hex())
    }

    fn write(&self, key: &ObjectKey, object: &[u8]) -> io::Result<()> {
        let size = (HEADER + object.len()) as u64;
        let share = self.limit / SHARDS;
        if size > share {
            return Ok(());
        }
        let shard = self.shard(key);
        make_folder(&shard)?;
        make_room(&shard, share - size)?;
        let begun = shard.join(unnamed());
        let written = write_entry(&begun, key, object).and_then(|()| fs::rename(&begun, self.path(key)));
        if written.is_err() {
            // If it can't be removed now, it will be as an abandoned one.
            let _ = fs::remove_file(&begun);
        }
        written
    }
}

impl ObjectStore for DiskCache {
    fn load(&self, key: &ObjectKey) -> Option<Vec<u8>> {
        let mut file = File::open(self.path(key)).ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || about.len() < HEADER as u64 || about.len() > self.limit {
            return None;
        }
        let mut bytes = Vec::with_capacity(about.len() as usize);
        file.read_to_end(&mut bytes).ok()?;
        let header = bytes.get(..HEADER)?;
        let object = &bytes[HEADER..];
        if header != entry_header(key, object) {
            return None;
        }
        let used = about.modified().ok().and_then(|time| time.elapsed().ok());
        if used.is_none_or(|age| age > FRESH) {
            // Only decides what is thrown away first.
            let _ = file.set_modified(SystemTime::now());
        }
        bytes.drain(..HEADER);
        Some(bytes)
    }

    fn save(&self, key: &ObjectKey, object: &[u8]) {
        // A full or read-only disk costs the next process its time, not this one its result.
        if let Err(error) = self.write(key, object) {
            let _ = self.failure.set(error);
        }
    }
}

fn entry_header(key: &ObjectKey, object: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..40].copy_from_slice(&key.0);
    header[40..].copy_from_slice(&Sha256::digest(object));
    header
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A file name that no other thread or process uses.
fn unnamed() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let moment = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(".{}-{}-{}", std::process::id(), moment.as_nanos(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn write_entry(path: &Path, key: &ObjectKey, object: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&entry_header(key, object))?;
    file.write_all(object)
}

/// Removes the entries that were not used for longest until the others take no more than `most` bytes.
fn make_room(shard: &Path, most: u64) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(shard)? {
        let entry = entry?;
        // What another process removes meanwhile needs no room.
        let Ok(about) = entry.metadata() else { continue };
        let modified = about.modified()?;
        let is_unnamed = entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_unnamed && modified.elapsed().is_ok_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        } else {
            entries.push((modified, about.len(), entry.path()));
        }
    }
    let mut total: u64 = entries.iter().map(|e| e.1).sum();
    entries.sort();
    for (_, size, path) in entries {
        if total <= most {
            break;
        }
        if fs::remove_file(path).is_ok() {
            total -= size;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder of the test's own that goes when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(std::env::temp_dir().join(format!("loafc-{name}{}", unnamed())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn key(first: u8, last: u8) -> ObjectKey {
        let mut bytes = [7; 32];
        (bytes[0], bytes[31]) = (first, last);
        ObjectKey(bytes)
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let shards = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
        shards.flat_map(|s| fs::read_dir(s).unwrap().map(|e| e.unwrap().path())).collect()
    }

    #[test]
    fn what_was_saved_is_loaded_by_another_opener_and_other_keys_find_nothing() {
        let folder = Folder::new("saved");
        DiskCache::open(&folder.0, 1 << 20).unwrap().save(&key(1, 1), b"code");
        let other = DiskCache::open(&folder.0, 1 << 20).unwrap();
        assert_eq!(other.load(&key(1, 1)).as_deref(), Some(&b"code"[..]));
        assert_eq!(other.load(&key(1, 2)), None);
        assert_eq!(fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed_and_mended_by_the_next_save() {
        let folder = Folder::new("damaged");
        let cache = DiskCache::open(&folder.0, 1 << 20).unwrap();
        cache.save(&key(1, 1), b"some code");
        let path = files(&folder.0).remove(0);
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.load(&key(1, 1)), None, "cut to {cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            fs::write(&path, changed).unwrap();
            assert_eq!(cache.load(&key(1, 1)), None, "changed at {at}");
        }
        // Another key's entry in this one's place.
        cache.save(&key(1, 2), b"other code");
        fs::copy(cache.path(&key(1, 2)), &path).unwrap();
        assert_eq!(cache.load(&key(1, 1)), None);
        cache.save(&key(1, 1), b"some code");
        assert_eq!(cache.load(&key(1, 1)).as_deref(), Some(&b"some code"[..]));
    }

    #[test]
    fn a_folder_in_an_entrys_place_hurts_nobody() {
        let folder = Folder::new("obstacle");
        let cache = DiskCache::open(&folder.0, 1 << 20).unwrap();
        fs::create_dir_all(cache.path(&key(1, 1)).join("x")).unwrap();
        cache.save(&key(1, 1), b"code");
        assert_eq!(cache.load(&key(1, 1)), None);
        assert_eq!(fs::read_dir(cache.shard(&key(1, 1))).unwrap().count(), 1, "nothing half written is left");
        let failure = cache.failure().unwrap();
        assert!(failure.starts_with(&folder.0.display().to_string()), "{failure}");
    }

    #[test]
    fn size_stays_below_the_limit_and_the_longest_unused_goes_first() {
        let folder = Folder::new("limit");
        let entry = vec![1; 1000];
        let cache = DiskCache::open(&folder.0, SHARDS * 3 * (1000 + HEADER as u64)).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000 * 24 * 3600);
        for k in 0..3u8 {
            cache.save(&key(1, k), &entry);
            let file = OpenOptions::new().write(true).open(cache.path(&key(1, k))).unwrap();
            file.set_modified(long_ago + Duration::from_secs(u64::from(k))).unwrap();
        }
        // A use counts.
        assert!(cache.load(&key(1, 0)).is_some());
        cache.save(&key(1, 3), &entry);
        let there: Vec<u8> = (0..4).filter(|k| cache.load(&key(1, *k)).is_some()).collect();
        assert_eq!(there, [0, 2, 3]);
        cache.save(&key(1, 4), &vec![1; 10_000]);
        assert_eq!(cache.load(&key(1, 4)), None, "larger than its share");
        assert_eq!(files(&folder.0).len(), 3);
    }

    #[test]
    fn what_a_dead_process_left_is_cleared_away() {
        let folder = Folder::new("abandoned");
        let cache = DiskCache::open(&folder.0, 1 << 20).unwrap();
        cache.save(&key(1, 1), b"code");
        let begun = [cache.shard(&key(1, 1)).join(".1-2-3"), cache.shard(&key(1, 1)).join(".4-5-6")];
        begun.iter().for_each(|path| fs::write(path, b"hal").unwrap());
        let file = OpenOptions::new().write(true).open(&begun[0]).unwrap();
        file.set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        cache.save(&key(1, 2), b"code");
        assert!(!begun[0].exists(), "old");
        assert!(begun[1].exists(), "may still be being written");
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = Folder::new("shared");
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let message = DiskCache::open(&folder.0, 1).unwrap_err().to_string();
        assert!(message.contains("can be written to by others (mode 777)"), "{message}");
        let file = folder.0.join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(DiskCache::open(&file, 1), Err(CacheError::Io { .. })));
    }

    #[test]
    fn many_threads_save_and_load_one_entry() {
        let folder = Folder::new("race");
        let object = vec![42; 50_000];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = DiskCache::open(&folder.0, 1 << 30).unwrap();
                    for _ in 0..20 {
                        cache.save(&key(1, 1), &object);
                        assert_eq!(cache.load(&key(1, 1)).as_ref(), Some(&object));
                    }
                });
            }
        });
        assert_eq!(files(&folder.0).len(), 1);
    }
}
