//! The sources of the manifests: kustomize's files, the chart, its values and their schema, the Dockerfile.

use crate::yaml::{documents, files, list, read, root, yaml};
use homing::cli::check_command_line;
use homing::config::Config;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The hash of a directory, as deploy/render.py makes it.
fn digest(dir: &str) -> String {
    let dir = root().join(dir);
    let mut sums = Sha256::new();
    let mut all: Vec<(String, Vec<u8>)> = files(&dir)
        .into_iter()
        .map(|p| (p.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned(), std::fs::read(&p).unwrap()))
        .collect();
    all.sort();
    for (name, content) in all {
        sums.update(name.as_bytes());
        sums.update([0]);
        sums.update(&content);
        sums.update([0]);
    }
    sums.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

#[test]
fn what_is_rendered_is_of_these_sources() {
    for (source, tool) in [("deploy/kustomize", "kustomize"), ("deploy/helm/homing", "helm")] {
        for mode in ["proxy", "extproc"] {
            let text = read(&format!("deploy/rendered/{tool}-{mode}.yaml"));
            let first = text.lines().next().unwrap();
            assert_eq!(
                first,
                format!("# sha256 of {source}: {}", digest(source)),
                "run deploy/render.py again"
            );
        }
    }
}

#[test]
fn kustomizations_name_files_that_exist_and_no_file_is_left_out() {
    for dir in ["base", "proxy", "extproc"] {
        let at = root().join("deploy/kustomize").join(dir);
        let k = yaml(&read(&format!("deploy/kustomize/{dir}/kustomization.yaml")));
        let mut named: Vec<String> = vec!["kustomization.yaml".into()];
        named.extend(list(&k["resources"]).iter().map(|r| r.as_str().unwrap().to_owned()));
        named.extend(list(&k["patches"]).iter().map(|p| p["path"].as_str().unwrap().to_owned()));
        for generator in list(&k["configMapGenerator"]) {
            named.extend(list(&generator["files"]).iter().map(|f| f.as_str().unwrap().to_owned()));
        }
        for name in &named {
            assert!(at.join(name).exists(), "{dir}: {name}");
        }
        for file in files(&at) {
            let name = file.strip_prefix(&at).unwrap().to_str().unwrap();
            assert!(named.iter().any(|n| n == name), "{dir}: nothing names {name}");
            if name != "homing.yaml" {
                documents(&std::fs::read_to_string(&file).unwrap());
            }
        }
    }
}

/// What a value has against a schema; as much of JSON Schema as the chart's uses, and anything else is an error.
fn faults(value: &Value, schema: &Value, at: &str, out: &mut Vec<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    for (key, rule) in schema.as_object().unwrap() {
        let number = rule.as_f64().unwrap_or(f64::NAN);
        let length = match value {
            Value::String(s) => s.len(),
            Value::Array(a) => a.len(),
            Value::Object(o) => o.len(),
            _ => 0,
        } as f64;
        let fine = match key.as_str() {
            "$schema" | "title" | "properties" => true,
            "type" => rule == kind || list(rule).iter().any(|t| t == kind),
            "enum" => list(rule).contains(value),
            "minimum" => value.as_f64().is_some_and(|v| v >= number),
            "maximum" => value.as_f64().is_some_and(|v| v <= number),
            "minLength" | "minItems" | "minProperties" => length >= number,
            "maxLength" | "maxItems" => length <= number,
            "required" => {
                kind != "object" || list(rule).iter().all(|k| !value[k.as_str().unwrap()].is_null())
            }
            "items" => {
                for (i, v) in list(value).iter().enumerate() {
                    faults(v, rule, &format!("{at}[{i}]"), out);
                }
                true
            }
            "additionalProperties" => {
                let known = schema["properties"].as_object();
                for (k, v) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|p| p.contains_key(k)) {
                        continue;
                    }
                    match rule {
                        Value::Bool(false) => out.push(format!("{at}.{k} isn't known")),
                        rule => faults(v, rule, &format!("{at}.{k}"), out),
                    }
                }
                true
            }
            _ => false,
        };
        if !fine {
            out.push(format!("{at}: {key} {rule} and {value}"));
        }
    }
    for (k, v) in value.as_object().into_iter().flatten() {
        if let Some(rule) = schema["properties"].get(k) {
            faults(v, rule, &format!("{at}.{k}"), out);
        }
    }
}

#[test]
fn the_values_fit_their_schema_and_wrong_ones_do_not() {
    let schema: Value = serde_json::from_str(&read("deploy/helm/homing/values.schema.json")).unwrap();
    let values = yaml(&read("deploy/helm/homing/values.yaml"));
    let judge = |values: &Value| {
        let mut out = Vec::new();
        faults(values, &schema, "values", &mut out);
        out
    };
    assert_eq!(judge(&values), Vec::<String>::new());
    // Every value has a rule, and every rule a value.
    let names =
        |v: &Value| v.as_object().unwrap().keys().filter(|k| *k != "global").cloned().collect::<Vec<_>>();
    assert_eq!(names(&values), names(&schema["properties"]));
    for (pointer, wrong) in [
        ("/mode", Value::from("nonsense")),
        ("/replicas", Value::from("two")),
        ("/modelServers/ports", Value::from(Vec::<u64>::new())),
        ("/service/port", Value::from(70_000)),
        ("/pool/failureMode", Value::Null),
        ("/drain/delay", Value::from(1.5)),
    ] {
        let mut values = values.clone();
        *values.pointer_mut(pointer).unwrap() = wrong;
        assert!(!judge(&values).is_empty(), "{pointer}");
    }
    let mut typo = values;
    typo["replicaCount"] = Value::from(3);
    assert_eq!(judge(&typo), ["values.replicaCount isn't known"]);
}

#[test]
fn the_chart_uses_the_values_that_there_are_and_is_of_this_version() {
    let chart = yaml(&read("deploy/helm/homing/Chart.yaml"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let values = yaml(&read("deploy/helm/homing/values.yaml"));
    let templates = root().join("deploy/helm/homing/templates");
    let mut used = std::collections::BTreeSet::new();
    for file in files(&templates) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches("{{").count(), text.matches("}}").count(), "{}", file.display());
        for (at, _) in text.match_indices(".Values.") {
            let path: String =
                text[at + 8..].chars().take_while(|c| c.is_alphanumeric() || *c == '.').collect();
            let pointer = format!("/{}", path.trim_end_matches('.').replace('.', "/"));
            assert!(values.pointer(&pointer).is_some(), "{}: no value {path}", file.display());
            used.extend(pointer.split('/').nth(1).map(str::to_owned));
        }
    }
    let unused: Vec<&String> = values.as_object().unwrap().keys().filter(|k| !used.contains(*k)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn the_image_runs_the_program_without_root() {
    let text = read("Dockerfile");
    let last = text.rfind("\nFROM ").unwrap();
    let stage = &text[last..];
    assert!(stage.lines().nth(1).unwrap().ends_with(":nonroot"), "{stage}");
    assert!(!stage.contains("RUN ") && !stage.contains("USER root"), "no shell, nothing to run");
    let line = |word: &str| stage.lines().find_map(|l| l.strip_prefix(word)).unwrap().trim().to_owned();
    let config = Config::default();
    assert_eq!(line("EXPOSE"), format!("{} {}", config.listen.port(), config.metrics.port()));
    assert_eq!(line("ENTRYPOINT"), "[\"/usr/local/bin/homing\"]");
    let words: Vec<String> = serde_json::from_str(&line("CMD")).unwrap();
    let words: Vec<&str> = std::iter::once("homing").chain(words.iter().map(String::as_str)).collect();
    check_command_line(&words).unwrap();
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|l| l.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(text.contains(&format!("FROM rust:{version}-")), "the compiler that Cargo.toml asks for");
}
