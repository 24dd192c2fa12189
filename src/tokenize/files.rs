//! Where a model's tokenizer is, and what its files say: `tokenizer.json`, the chat template, the special tokens.
//!
//! A folder with these files is taken as it is. A Hugging Face cache folder (`models--org--name`, or the hub folder that
//! holds it, with the model's name) is resolved to the snapshot that `refs/main` names, else to the newest one.

use super::LoadError;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: the largest tokenizers of today have 35 MB.
const MOST: u64 = 256 << 20;

/// What the files of a model say of its prompts.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Text of `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
    /// Chat templates by name; "default" is the one without a name.
    pub(super) templates: BTreeMap<String, String>,
    /// `bos_token`, `eos_token` and the like, as templates see them.
    pub(super) specials: Vec<(String, String)>,
    /// `added_tokens_decoder` of `tokenizer_config.json`: tokens that `tokenizer.json` may not have.
    pub(super) added: Vec<Value>,
}

/// The name of the template that has none.
pub(super) const DEFAULT: &str = "default";

/// Special tokens that have a name in `tokenizer_config.json` and so in templates.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Files {
    /// Reads the files at `path`; `template`, if given, is the file of the chat template instead of the model's own.
    pub(super) fn read(path: &Path, template: Option<&Path>) -> Result<Files, LoadError> {
        let folder = if path.is_file() { path.parent().unwrap_or(path).to_owned() } else { resolve(path)? };
        let main = if path.is_file() { path.to_owned() } else { folder.join("tokenizer.json") };
        let mut files = Files { tokenizer: read(&main)?, ..Files::default() };
        let config = folder.join("tokenizer_config.json");
        if config.is_file() {
            let config: Value = parse(&config)?;
            files.take_config(&config);
        }
        files.take_templates(&folder)?;
        if let Some(template) = template {
            let text = text(template)?;
            files.templates = BTreeMap::from([(DEFAULT.to_owned(), text)]);
        }
        Ok(files)
    }

    fn take_config(&mut self, config: &Value) {
        for name in NAMED {
            if let Some(token) = content(&config[name]) {
                self.specials.push((name.to_owned(), token.to_owned()));
            }
        }
        match &config["chat_template"] {
            Value::String(text) => {
                self.templates.insert(DEFAULT.to_owned(), text.clone());
            }
            Value::Array(list) => {
                let named = list.iter().filter_map(|t| Some((t["name"].as_str()?, t["template"].as_str()?)));
                self.templates.extend(named.map(|(name, text)| (name.to_owned(), text.to_owned())));
            }
            _ => {}
        }
        if let Value::Object(added) = &config["added_tokens_decoder"] {
            let mut list: Vec<(u64, &Value)> =
                added.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
            list.sort_by_key(|(id, _)| *id);
            self.added = list.into_iter().map(|(_, token)| token.clone()).collect();
        }
    }

    /// Files of their own come before what `tokenizer_config.json` says.
    fn take_templates(&mut self, folder: &Path) -> Result<(), LoadError> {
        let single = folder.join("chat_template.jinja");
        let json = folder.join("chat_template.json");
        if single.is_file() {
            self.templates.insert(DEFAULT.to_owned(), text(&single)?);
        } else if json.is_file() && self.templates.is_empty() {
            let parsed: Value = parse(&json)?;
            if let Some(text) = parsed["chat_template"].as_str() {
                self.templates.insert(DEFAULT.to_owned(), text.to_owned());
            }
        }
        let more = folder.join("additional_chat_templates");
        for entry in fs::read_dir(more).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "jinja")
                && let Some(name) = path.file_stem().and_then(|n| n.to_str())
            {
                self.templates.insert(name.to_owned(), text(&path)?);
            }
        }
        Ok(())
    }
}

/// The folder that has `tokenizer.json`: this one, or the snapshot of a Hugging Face cache folder.
fn resolve(path: &Path) -> Result<PathBuf, LoadError> {
    if path.join("tokenizer.json").is_file() {
        return Ok(path.to_owned());
    }
    let mut bases = vec![path.to_owned()];
    // `HUB/org/name` stands for `HUB/models--org--name`.
    if let (Some(name), Some(org)) = (path.file_name(), path.parent().and_then(Path::file_name))
        && let Some(hub) = path.parent().and_then(Path::parent)
    {
        let folder = format!("models--{}--{}", org.to_string_lossy(), name.to_string_lossy());
        bases.push(hub.join(&folder));
        bases.push(hub.join("hub").join(folder));
    }
    for base in bases {
        let snapshots = base.join("snapshots");
        if let Ok(main) = fs::read_to_string(base.join("refs").join("main")) {
            let folder = snapshots.join(main.trim());
            if folder.join("tokenizer.json").is_file() {
                return Ok(folder);
            }
        }
        let found = fs::read_dir(&snapshots).into_iter().flatten().flatten().map(|e| e.path());
        let newest = found
            .filter(|f| f.join("tokenizer.json").is_file())
            .max_by_key(|f| f.metadata().and_then(|m| m.modified()).ok());
        if let Some(folder) = newest {
            return Ok(folder);
        }
    }
    Err(LoadError::Missing { path: path.to_owned() })
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.len() > MOST {
        return Err(failed(std::io::Error::other("larger than 256 MiB: not a tokenizer")));
    }
    fs::read(path).map_err(failed)
}

fn text(path: &Path) -> Result<String, LoadError> {
    String::from_utf8(read(path)?)
        .map_err(|_| LoadError::Invalid { path: path.to_owned(), detail: "not UTF-8".to_owned() })
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, LoadError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|e| LoadError::Invalid { path: path.to_owned(), detail: e.to_string() })
}

/// A token that is a string, or an object with its content.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("homing-tokenize-files-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn all_forms_of_templates_are_found() {
        let dir = folder("forms");
        fs::write(dir.join("tokenizer.json"), "{}").unwrap();
        let config = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
            "chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}],
            "added_tokens_decoder": {"10": {"content": "b"}, "9": {"content": "a"}}}"#;
        fs::write(dir.join("tokenizer_config.json"), config).unwrap();
        let files = Files::read(&dir, None).unwrap();
        assert_eq!(files.templates["default"], "d");
        assert_eq!(files.templates["tool_use"], "t");
        let specials: Vec<(&str, &str)> = files.specials.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(specials, [("bos_token", "<s>"), ("eos_token", "</s>")]);
        assert_eq!(files.added[0]["content"], "a");
        fs::write(dir.join("chat_template.jinja"), "file").unwrap();
        assert_eq!(Files::read(&dir, None).unwrap().templates["default"], "file");
        let other = dir.join("mine.jinja");
        fs::write(&other, "mine").unwrap();
        let files = Files::read(&dir.join("tokenizer.json"), Some(&other)).unwrap();
        assert_eq!(files.templates["default"], "mine");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_cache_folder_leads_to_the_snapshot_that_main_names() {
        let hub = folder("hub");
        let model = hub.join("models--org--name");
        for (commit, text) in [("aaa", "1"), ("bbb", "2")] {
            let snapshot = model.join("snapshots").join(commit);
            fs::create_dir_all(&snapshot).unwrap();
            fs::write(snapshot.join("tokenizer.json"), text).unwrap();
        }
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), "aaa\n").unwrap();
        for path in [model.clone(), hub.join("org/name")] {
            assert_eq!(Files::read(&path, None).unwrap().tokenizer, b"1", "{}", path.display());
        }
        let error = Files::read(&hub.join("org/other"), None).unwrap_err();
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
        fs::remove_dir_all(hub).unwrap();
    }
}
