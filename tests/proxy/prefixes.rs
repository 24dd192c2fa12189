//! What counts as the same prompt, seen from a client: cached tokens as `x-homing-explain` tells them.

use crate::client::{CHAT, call, post};
use crate::double::{Double, json};
use crate::rig::Rig;
use serde_json::{Value, json as value};

/// Sends a body; returns the replica that it went to and the tokens believed cached there.
async fn placed(rig: &Rig, body: &Value) -> (String, u32) {
    let mut request = post(CHAT, body.to_string());
    request.headers_mut().insert("x-homing-explain", "1".parse().unwrap());
    let got = call(rig.addr, request).await;
    assert_eq!(got.status, 200, "{}", got.text());
    let told = |name: &str| got.headers[name].to_str().unwrap().to_owned();
    (told("x-homing-replica"), told("x-homing-cached-tokens").parse().unwrap())
}

#[tokio::test]
async fn a_shared_prefix_of_nine_thousand_tokens_is_matched_in_whole() {
    // Answers without usage: a token stays the quarter of a byte.
    let replicas = [Double::always(vec![json(200, "{}")]).await, Double::always(vec![json(200, "{}")]).await];
    let rig = Rig::start(&replicas.each_ref().map(|r| r.addr)).await;
    let system: String = (0..6000).map(|i| format!("{i:05} ")).collect();
    assert_eq!(system.len(), 36_000);
    let ask = |n: u32| {
        value!({"model": "m", "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": format!("question {n}")},
        ]})
    };
    let (home, cached) = placed(&rig, &ask(0)).await;
    assert_eq!(cached, 0);
    for n in 1..5 {
        let (replica, cached) = placed(&rig, &ask(n)).await;
        assert_eq!(replica, home);
        // All but the block in which the questions part.
        assert!((8900..=9000).contains(&cached), "{cached}");
    }
}

#[tokio::test]
async fn whatever_the_model_reads_is_part_of_the_prefix() {
    let replica = Double::always(vec![json(200, "{}")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let text = "a question of some length ".repeat(100);
    let base = value!({
        "model": "m",
        "cache_salt": "tenant-1",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://images/1.png"}},
                {"type": "text", "text": text},
            ]},
        ],
    });
    assert_eq!(placed(&rig, &base).await.1, 0);
    assert!(placed(&rig, &base).await.1 > 500, "the same again");
    for (path, other) in [
        ("/cache_salt", value!("tenant-2")),
        ("/tools/0/function/name", value!("g")),
        ("/messages/0/content", value!("be polite")),
        ("/messages/0/role", value!("user")),
        ("/messages/1/content/0/image_url/url", value!("http://images/2.png")),
    ] {
        let mut body = base.clone();
        *body.pointer_mut(path).unwrap() = other;
        assert_eq!(placed(&rig, &body).await.1, 0, "{path} makes another prompt");
    }
    // What the model doesn't read changes nothing.
    let mut body = base.clone();
    body["temperature"] = value!(0.5);
    body["user"] = value!("somebody");
    assert!(placed(&rig, &body).await.1 > 500);
}
