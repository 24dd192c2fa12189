//! Reading YAML, and looking into it.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The documents of a file with several.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(yaml).filter(|v| !v.is_null()).collect()
}

/// Files below a directory.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

/// Are all entries of one map in the other, and is there any?
pub(crate) fn within(small: &Value, large: &Value) -> bool {
    let small = small.as_object().unwrap();
    !small.is_empty() && small.iter().all(|(k, v)| &large[k] == v)
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn numbers(value: &Value, key: &str) -> Vec<u64> {
    let mut all: Vec<u64> = list(value).iter().filter_map(|v| v[key].as_u64()).collect();
    all.sort_unstable();
    all
}
