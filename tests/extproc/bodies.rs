//! Bodies in any shape, both ways.

use super::rig::*;

#[tokio::test]
async fn a_body_in_two_chunks_arrives_whole() {
    let rig = Rig::start(1).await;
    let mut envoy = rig.stream().await;
    let pairs =
        [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
    envoy.head(None, &pairs, false).await;
    envoy.body(&CHAT.as_bytes()[..17], false).await;
    envoy.body(&CHAT.as_bytes()[17..], false).await;
    envoy.body(b"", true).await;
    let picked = envoy.picked().await;
    assert_eq!(picked.set("content-length"), Some(CHAT.len().to_string()));
    assert_eq!(envoy.passed_on().await, CHAT.as_bytes());
}

#[tokio::test]
async fn fifty_megabytes_stream_through_after_a_part_of_them() {
    let rig = Rig::with(2, |c| {
        c.extproc.decide_bytes = homing::config::Size::bytes(256 << 10);
        c.limits.body_bytes = homing::config::Size::bytes(1 << 20);
    })
    .await;
    let text = "data:image/png;base64,".to_owned() + &"iVBORw0KGgo".repeat(50 * 1024 * 1024 / 11);
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{text}"}}}}]}}]}}"#
    );
    let mut envoy = rig.stream().await;
    let length = body.len().to_string();
    let pairs = [
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
        ("content-length", length.as_str()),
    ];
    envoy.head(None, &pairs, false).await;
    let (first, rest) = body.as_bytes().split_at(300 << 10);
    envoy.body(first, false).await;
    let picked = envoy.picked().await;
    assert_eq!(picked.set("content-length"), Some(length.clone()), "placed long before the end");
    let mut got = Vec::new();
    while got.len() < first.len() {
        let out = envoy.hear().await.unwrap();
        got.extend(piece(out));
    }
    for chunk in rest.chunks(1 << 20) {
        envoy.body(chunk, false).await;
        let upto = got.len() + chunk.len();
        while got.len() < upto {
            got.extend(piece(envoy.hear().await.unwrap()));
        }
    }
    envoy.body(b"", true).await;
    assert_eq!(envoy.passed_on().await, b"", "the end, once");
    assert_eq!(got.len(), body.len());
    assert!(got == body.as_bytes());
    envoy.finish().await;
    rig.quiet().await;
}

fn piece(out: envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse) -> Vec<u8> {
    use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
    use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
    let Some(Response::RequestBody(b)) = out.response else { panic!("{out:?}") };
    let Some(Mutation::StreamedResponse(s)) = b.response.unwrap().body_mutation.unwrap().mutation else {
        panic!("not streamed")
    };
    assert!(!s.end_of_stream && s.body.len() <= 62_000);
    s.body
}

#[tokio::test]
async fn a_body_that_is_too_long_to_hold_is_refused() {
    let rig = Rig::with(1, |c| {
        c.extproc.decide_bytes = homing::config::Size::bytes(1 << 10);
        c.limits.body_bytes = homing::config::Size::bytes(100 << 10);
    })
    .await;
    let mut envoy = rig.stream().await;
    let long = format!(r#"{{"messages":[{{"content":"{}"}}],"model":"m"}}"#, "x".repeat(200 << 10));
    let pairs = [(":method", "POST"), (":path", "/v1/chat/completions")];
    envoy.head(None, &pairs, false).await;
    for chunk in long.as_bytes().chunks(16 << 10) {
        envoy.body(chunk, false).await;
    }
    assert_eq!(envoy.refused().await.status.unwrap().code, 413);
}

#[tokio::test]
async fn a_model_is_rewritten_and_named_back_in_a_stream_across_chunks() {
    for by_header in [false, true] {
        let rig = Rig::with(1, |c| {
            if !by_header {
                c.extproc.rewrites = [("m".to_owned(), "m-v2".to_owned())].into();
            }
        })
        .await;
        let mut envoy = rig.stream().await;
        let more = [("x-llm-d-model-name-rewrite", "m-v2")];
        envoy.post(None, if by_header { &more } else { &[] }, CHAT).await;
        let expected = CHAT.replace("\"m\"", "\"m-v2\"");
        let picked = envoy.picked().await;
        assert_eq!(picked.set("content-length"), Some(expected.len().to_string()));
        assert_eq!(envoy.passed_on().await, expected.as_bytes());
        envoy.answer_head(None, &[(":status", "200"), ("content-type", "text/event-stream")]).await;
        assert_eq!(envoy.answered().await.header_mutation.unwrap().remove_headers, ["content-length"]);
        let stream = "data: {\"model\":\"m-v2\",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":\\\"m-v2\\\"\"}}]}\n\n";
        let (a, b) = stream.split_at(stream.find("v2").unwrap());
        envoy.answer_body(a, false).await;
        envoy.answer_body(b, false).await;
        envoy.answer_body("data: [DONE]\n\n", true).await;
        let got = String::from_utf8(envoy.passed_back(usize::MAX).await).unwrap();
        assert_eq!(got, stream.replacen("m-v2", "m", 1) + "data: [DONE]\n\n");
    }
}

#[tokio::test]
async fn usage_and_done_in_one_chunk_are_learned() {
    let rig = Rig::start(1).await;
    let mut envoy = rig.stream().await;
    envoy.chat(CHAT).await;
    envoy.answer_head(None, &[(":status", "200"), ("content-type", "text/event-stream")]).await;
    envoy.answered().await;
    let first = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    envoy.answer_body(first, false).await;
    assert_eq!(envoy.passed_back(first.len()).await, first.as_bytes(), "at once, before anything else came");
    let last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":5,\
                \"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n";
    envoy.answer_body(last, false).await;
    envoy.answer_body("", true).await;
    assert_eq!(envoy.passed_back(usize::MAX).await, last.as_bytes());
    envoy.close().await;
    rig.quiet().await;
    eventually("it is counted", || rig.metric("homing_requests_total{model=\"m\",code=\"200\"") == 1.0).await;
    assert_eq!(rig.metric("homing_prompt_tokens_total{model=\"m\"}"), 21.0);
    assert_eq!(rig.metric("homing_actual_cached_tokens_total{replica=\"10.0.0.1:8000\"}"), 16.0);
    assert_eq!(rig.metric("homing_ttft_seconds_count{model=\"m\"}"), 1.0);
}

#[tokio::test]
async fn an_answer_in_many_chunks_with_trailers_passes_piece_by_piece() {
    let rig = Rig::start(1).await;
    let mut envoy = rig.stream().await;
    envoy.chat(CHAT).await;
    envoy.answer_head(None, &[(":status", "200"), ("content-type", "application/json")]).await;
    envoy.answered().await;
    let answer = format!(
        r#"{{"id":"x","text":"{}","usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#,
        "y".repeat(5000)
    );
    for chunk in answer.as_bytes().chunks(100) {
        let chunk = std::str::from_utf8(chunk).unwrap();
        envoy.answer_body(chunk, false).await;
        assert_eq!(envoy.passed_back(chunk.len()).await, chunk.as_bytes());
    }
    envoy.answer_trailers().await;
    let out = envoy.hear().await.unwrap();
    use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
    assert!(matches!(out.response, Some(Response::ResponseTrailers(_))));
    eventually("released with the end", || rig.router.load() == (0, 0)).await;
}
