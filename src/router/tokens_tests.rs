//! Exact prompts through the router: token chains where a model's files are at hand, text elsewhere.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up has failed")]

use super::*;
use crate::config::{ReplicaSpec, Seconds, Size, TokenizerModel};
use crate::core::Outcome;
use crate::core::health::Probe;
use crate::router::{Ask, Member, ModelInfo};
use serde_json::{Map, Value, json};

/// A folder with a tokenizer of ASCII bytes: each is a token with its own value as id.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("homing-router-tokens-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let vocab: Map<String, Value> = (0..128u8).map(|b| (char::from(b).to_string(), json!(b))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '|' }}{% endfor %}";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    folder
}

fn router(name: &str, timeout: Seconds) -> Arc<Router> {
    let folder = folder(name);
    let mut config = Config::default();
    config.tokenizer.models = vec![TokenizerModel {
        names: vec!["exact".into(), "alias".into()],
        path: folder.clone(),
        template: None,
        block_tokens: 16,
        cache: Size::bytes(1 << 20),
    }];
    config.tokenizer.timeout = timeout;
    let router = Router::new(&config, 7);
    router.use_tokens(Tokens::load(&config).unwrap().unwrap());
    std::fs::remove_dir_all(folder).unwrap();
    let spec = ReplicaSpec { kv_tokens: Some(1 << 20), ..ReplicaSpec::new("http://127.0.0.1:9") };
    let id = router.join(Member::new(spec).unwrap()).unwrap();
    let names = ["exact", "alias", "text"];
    let listed = names.map(|n| ModelInfo { id: n.into(), parent: None, max_model_len: Some(8192) });
    router.models(id, listed.to_vec());
    router.probe(id, Probe::Ok);
    router.fit_capacities();
    router
}

fn body(content: &str) -> Bytes {
    json!({"messages": [{"role": "user", "content": content}]}).to_string().into()
}

async fn told(router: &Router, model: &str, salt: Option<&str>, content: &str) -> TokenPrompt {
    router.tokens(Kind::Chat, Some(model), salt, &body(content)).await.unwrap().unwrap()
}

fn ask(model: &str, tokens: TokenPrompt) -> Ask {
    Ask {
        model: Some(model.into()),
        chain: vec![1, 2],
        text_bytes: 600,
        choices: 1,
        generates: true,
        streams: true,
        tokens: Some(tokens),
        ..Ask::default()
    }
}

#[tokio::test]
async fn what_is_cached_is_known_to_the_token() {
    let r = router("cached", Seconds::from_secs(30));
    let first = told(&r, "exact", None, &"a".repeat(94)).await;
    assert_eq!((first.tokens, first.chain.len(), first.block), (100, 6, 16), "user:…| is 100 bytes");
    let placed = r.place(&ask("exact", first.clone())).await.unwrap();
    assert_eq!((placed.predicted_cached(), placed.prompt_tokens()), (0, 100));
    placed.finish(Outcome { output_tokens: Some(1), ..Outcome::default() });
    let again = r.place(&ask("exact", first)).await.unwrap();
    assert_eq!(again.predicted_cached(), 96, "all full blocks");
    drop(again);
    let longer = told(&r, "alias", None, &("a".repeat(50) + &"b".repeat(60))).await;
    let placed = r.place(&ask("alias", longer)).await.unwrap();
    assert_eq!(placed.predicted_cached(), 48, "55 bytes are the same; all names are one model");
    placed.finish(Outcome::default());
    let salted = told(&r, "exact", Some("s"), &"a".repeat(94)).await;
    assert_eq!(r.place(&ask("exact", salted)).await.unwrap().predicted_cached(), 0, "another salt");
    assert_eq!(r.exact_stats().speculations, 0);
    assert_eq!(r.index_stats().speculations, 0, "the text was entered too, and settled");
    assert!(r.index_stats().distinct_blocks > 0);
}

#[tokio::test]
async fn a_prompt_of_exactly_n_blocks_finds_one_less() {
    let r = router("n", Seconds::from_secs(30));
    let prompt = told(&r, "exact", None, &"a".repeat(58)).await;
    assert_eq!((prompt.tokens, prompt.chain.len()), (64, 4));
    r.place(&ask("exact", prompt.clone())).await.unwrap().finish(Outcome::default());
    assert_eq!(r.place(&ask("exact", prompt)).await.unwrap().predicted_cached(), 48);
}

#[tokio::test]
async fn ids_that_come_late_are_not_waited_for() {
    let r = router("late", Seconds::from_millis(0));
    let long = "a".repeat(4 << 20);
    let told = r.tokens(Kind::Chat, Some("exact"), None, &body(&long)).await.unwrap();
    assert_eq!(told, Err(Inexact::Late));
    assert_eq!(r.tokens(Kind::Chat, Some("text"), None, &body("a")).await, None, "no files, no ids");
    assert_eq!(r.tokens(Kind::Chat, None, None, &body("a")).await, None);
    let now = r.tokens_now(Kind::Chat, Some("exact"), None, b"{}").unwrap();
    assert_eq!(now.unwrap_err().label(), "body");
}

#[test]
fn files_that_are_not_there_stop_the_start_with_their_path() {
    let mut config = Config::default();
    assert!(Tokens::load(&config).unwrap().is_none());
    config.tokenizer.models = vec![TokenizerModel {
        names: vec!["m".into()],
        path: "/nowhere/at/all".into(),
        template: None,
        block_tokens: 16,
        cache: Size::bytes(0),
    }];
    let error = Tokens::load(&config).unwrap_err().to_string();
    assert!(error.contains("tokenizer.models, m") && error.contains("/nowhere/at/all"), "{error}");
}
