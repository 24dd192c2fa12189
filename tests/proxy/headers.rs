//! Headers and addresses, on their way in both directions.

use crate::client::{CHAT, ask, call, chat, get, post};
use crate::double::{Act, Double, answer, json, json_with};
use crate::rig::Rig;
use homing::config::{ReplicaSpec, Secret};

#[tokio::test]
async fn headers_pass_hop_by_hop_dropped() {
    let answered = json_with(
        200,
        "connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nserver: uvicorn\r\nx-custom: c\r\nset-cookie: a\r\nset-cookie: b\r\n",
        "{}",
    );
    let replica = Double::always(vec![answered]).await;
    let rig = Rig::start(&[replica.addr]).await;
    for path in [CHAT, "/v1/embeddings"] {
        let mut request = post(path, chat("x", false));
        for (name, value) in [
            ("user-agent", "tester/1"),
            ("x-custom", "one"),
            ("traceparent", "00-1-2-01"),
            ("authorization", "Bearer client"),
            ("connection", "x-private"),
            ("x-private", "secret"),
            ("te", "trailers"),
            ("x-homing-priority", "9"),
            ("x-request-id", "mine-1"),
        ] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let got = call(rig.addr, request).await;
        let seen = replica.seen().pop().unwrap();
        for (name, value) in [
            ("user-agent", Some("tester/1")),
            ("x-custom", Some("one")),
            ("traceparent", Some("00-1-2-01")),
            ("authorization", Some("Bearer client")),
            ("x-request-id", Some("mine-1")),
            ("host", Some(replica.addr.to_string().as_str())),
            ("content-length", Some(chat("x", false).len().to_string().as_str())),
            ("x-private", None),
            ("te", None),
            ("x-homing-priority", None),
        ] {
            assert_eq!(seen.header(name), value, "{name} on {path}");
        }
        assert_eq!(got.headers["x-request-id"], "mine-1");
        assert_eq!(
            (&got.headers["x-custom"], &got.headers["server"]),
            (&"c".parse().unwrap(), &"uvicorn".parse().unwrap())
        );
        assert_eq!(got.headers.get_all("set-cookie").iter().count(), 2);
        for name in ["x-hop", "keep-alive", "connection", "x-homing-replica"] {
            assert!(!got.headers.contains_key(name), "{name}");
        }
    }
}

#[tokio::test]
async fn each_replica_gets_its_own_key_and_base_path() {
    let replica = Double::always(vec![answer("a")]).await;
    let spec = ReplicaSpec {
        api_key: Some(Secret::new("ours")),
        headers: [("x-extra".to_owned(), Secret::new("e"))].into(),
        ..ReplicaSpec::new(format!("http://{}/base/a/", replica.addr))
    };
    let rig = Rig::of(vec![spec], |_| {}).await;
    let mut request = post(&format!("{CHAT}?a=1&b=%20"), chat("x", false));
    request.headers_mut().insert("authorization", "Bearer client".parse().unwrap());
    assert_eq!(call(rig.addr, request).await.status, 200);
    let seen = &replica.seen()[0];
    assert_eq!(seen.line(), format!("POST /base/a{CHAT}?a=1&b=%20 HTTP/1.1"));
    assert_eq!(seen.header("authorization"), Some("Bearer ours"));
    assert_eq!(seen.header("x-extra"), Some("e"));
    assert!(!seen.head.contains("client"));
}

#[tokio::test]
async fn a_request_without_an_id_gets_one() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let ids: Vec<String> = [ask(rig.addr, CHAT, chat("x", false)).await, ask(rig.addr, CHAT, "{").await]
        .iter()
        .map(|got| got.headers["x-request-id"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(replica.seen()[0].header("x-request-id"), Some(ids[0].as_str()));
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn who_asks_is_told_where_the_request_went() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut request = post(CHAT, chat("x", false));
    request.headers_mut().insert("x-homing-explain", "1".parse().unwrap());
    let got = call(rig.addr, request).await;
    assert_eq!(got.headers["x-homing-replica"], replica.addr.to_string());
    assert_eq!(got.headers["x-homing-cached-tokens"], "0");
    assert!(got.headers.contains_key("x-homing-wait-ms"));
}

#[tokio::test]
async fn models_are_the_union_in_a_stable_order() {
    let replica = Double::always(vec![json(404, "{}")]).await;
    let spec = |models: &[&str]| ReplicaSpec {
        models: Some(models.iter().map(|m| (*m).to_owned()).collect()),
        ..ReplicaSpec::new(format!("http://{}", replica.addr))
    };
    let rig = Rig::of(vec![spec(&["m", "org/lora"]), spec(&["b", "m"])], |_| {}).await;
    let page = get(rig.addr, "/v1/models").await;
    let names: Vec<String> = page.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["b", "m", "org/lora"]);
    assert_eq!(get(rig.addr, "/v1/models").await.body, page.body);
    for path in ["/v1/models/org/lora", "/v1/models/org%2Flora"] {
        assert_eq!(get(rig.addr, path).await.json()["id"], "org/lora");
    }
    assert_eq!(get(rig.addr, "/v1/models/none").await.status, 404);
    assert_eq!(get(rig.addr, "/health").await.status, 200);
    assert!(replica.seen().is_empty(), "the router answers these itself");
}

#[tokio::test]
async fn early_hints_are_left_out() {
    let hints =
        Act::Send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n".to_vec());
    let replica = Double::always(vec![hints, answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let got = ask(rig.addr, CHAT, chat("x", false)).await;
    assert_eq!((got.status, got.json()["id"].as_str()), (200, Some("a")));
}

#[tokio::test]
async fn steering_headers_of_strangers_have_no_effect() {
    let replicas = [Double::always(vec![json(200, "{}")]).await, Double::always(vec![json(200, "{}")]).await];
    let names = replicas.each_ref().map(|r| r.addr.to_string());
    let rig = Rig::start(&replicas.each_ref().map(|r| r.addr)).await;
    let long = "the same words again ".repeat(200);
    for n in 0..10 {
        let body = chat(&format!("{n} {long}"), false);
        let mut plain = post(CHAT, body.clone());
        plain.headers_mut().insert("x-homing-explain", "1".parse().unwrap());
        let home = call(rig.addr, plain).await.headers["x-homing-replica"].clone();
        let other = names.iter().find(|n| n.as_bytes() != home.as_bytes()).unwrap();
        let mut steered = post(CHAT, body);
        for (name, value) in [
            ("x-homing-explain", "1"),
            ("x-homing-replica", other),
            ("x-homing-subset", other),
            ("x-homing-priority", "100"),
            ("x-homing-tenant", "somebody else"),
            ("x-homing-cached-tokens", "0"),
            ("x-homing-made-up", "1"),
        ] {
            steered.headers_mut().insert(name, value.parse().unwrap());
        }
        assert_eq!(call(rig.addr, steered).await.headers["x-homing-replica"], home);
    }
    for seen in replicas.iter().flat_map(|r| r.seen()) {
        assert!(!seen.head.to_ascii_lowercase().contains("x-homing"), "{}", seen.head);
    }
}
