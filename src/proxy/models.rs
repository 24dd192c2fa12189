//! `/v1/models`: what the fleet serves, as one server would say it.

use super::answer::Answer;
use super::record::Record;
use super::respond;
use crate::openai::Problem;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

/// The merged list.
pub(super) fn all(mut record: Box<Record>) -> Response<Answer> {
    record.route = "models";
    let page = record.worker.shared.router.models_page();
    respond::json(record, StatusCode::OK, page)
}

/// One model's entry. Names may hold slashes, so the rest of the path is the name.
pub(super) fn one(mut record: Box<Record>, name: &str) -> Response<Answer> {
    record.route = "models";
    let router = &record.worker.shared.router;
    let name = percent_decoded(name);
    match entry(&router.models_page(), &name) {
        Some(entry) => respond::json(record, StatusCode::OK, entry),
        None => {
            let known = router.model_names();
            respond::problem(record, &Problem::model_not_found(&name, known.iter()))
        }
    }
}

fn entry(page: &[u8], name: &str) -> Option<Bytes> {
    let page: Value = serde_json::from_slice(page).ok()?;
    let entry = page["data"].as_array()?.iter().find(|m| m["id"] == name)?;
    Some(entry.to_string().into())
}

/// Percent-decodes a path; what isn't a valid escape stays as it is.
pub(super) fn percent_decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| path.get(at + 1..at + 3)).flatten();
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_and_escapes() {
        assert_eq!(percent_decoded("org/model"), "org/model");
        assert_eq!(percent_decoded("org%2Fmodel%20b"), "org/model b");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%é%zz"), "%é%zz");
    }

    #[test]
    fn one_entry_of_the_page() {
        let page = br#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}"#;
        assert_eq!(entry(page, "a").as_deref(), Some(&br#"{"id":"a","object":"model"}"#[..]));
        assert_eq!(entry(page, "c"), None);
    }
}
