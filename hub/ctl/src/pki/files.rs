//! Writing the PKI's files: private ones readable by their owner alone, none overwritten unless that was asked for.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::Error;

/// What tells that a directory holds a PKI.
const MARKERS: [&str; 2] = ["ca.crt", "ca.key"];

/// The directory being filled.
pub(super) struct Tree {
    root: PathBuf,
    written: Vec<PathBuf>,
}

impl Tree {
    pub(super) fn open(root: &Path, force: bool) -> Result<Self, Error> {
        let taken = MARKERS.iter().any(|name| root.join(name).symlink_metadata().is_ok());
        if taken && !force {
            return Err(Error::Exists { dir: root.to_owned() });
        }
        directory(root)?;
        Ok(Self { root: root.to_owned(), written: Vec::new() })
    }

    pub(super) fn public(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.write(name, text, 0o644)
    }

    pub(super) fn secret(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.write(name, text, 0o600)
    }

    pub(super) fn written(self) -> Vec<PathBuf> {
        self.written
    }

    /// A new file beside the old one takes its place: the mode is right from the first byte on, whatever was there.
    fn write(&mut self, name: &str, text: &str, mode: u32) -> Result<(), Error> {
        let path = self.root.join(name);
        let parent = path.parent().expect("a name below the root has a parent");
        directory(parent)?;
        let fail = |source| Error::Write { path: path.clone(), source };
        let fresh = path.with_extension("new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fail(error)),
            Ok(()) | Err(_) => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh).map_err(fail)?;
        file.write_all(text.as_bytes()).map_err(fail)?;
        drop(file);
        fs::rename(&fresh, &path).map_err(fail)?;
        self.written.push(path);
        Ok(())
    }
}

fn directory(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|source| Error::Write { path: path.to_owned(), source })
}
