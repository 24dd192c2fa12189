//! However a stream ends: what was booked is given back, where the work was.

use super::rig::*;
use homing::router::Page;
use tonic::Code;

#[tokio::test]
async fn a_stream_that_is_reset_gives_back_in_every_phase() {
    let rig = Rig::start(1).await;
    for phase in 0..4 {
        let mut envoy = rig.stream().await;
        if phase == 0 {
            envoy.head(None, &[(":method", "POST"), (":path", "/v1/chat/completions")], false).await;
        } else {
            envoy.chat(CHAT).await;
            assert_eq!(rig.router.load().0, 1);
        }
        if phase > 1 {
            envoy.answer_head(None, &[(":status", "200"), ("content-type", "text/event-stream")]).await;
            envoy.answered().await;
        }
        if phase > 2 {
            envoy.answer_body("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", false).await;
            envoy.passed_back(1).await;
        }
        drop(envoy);
        rig.quiet().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_line_gives_up_its_place() {
    let spec = homing::config::ReplicaSpec {
        max_in_flight: Some(1),
        ..homing::config::ReplicaSpec::new("http://10.0.0.1:8000")
    };
    let rig = Rig::of(vec![spec], |_| {});
    let mut first = rig.stream().await;
    first.chat(CHAT).await;
    let mut second = rig.stream().await;
    second.post(None, &[], CHAT).await;
    eventually("it waits", || rig.router.load() == (1, 1)).await;
    drop(second);
    eventually("it has left", || rig.router.load() == (1, 0)).await;
}

#[tokio::test]
async fn what_another_endpoint_served_is_booked_there() {
    let rig = Rig::start(2).await;
    let mut envoy = rig.stream().await;
    let picked = envoy.chat(CHAT).await.destination;
    let (first, next) = picked.split_once(',').unwrap();
    let (chosen, other) = if first == "10.0.0.1:8000" { (0, 1) } else { (1, 0) };
    assert_eq!((rig.in_flight(chosen), rig.in_flight(other)), (1, 0));
    envoy.answer_head(served(next), &[(":status", "200")]).await;
    envoy.answered().await;
    eventually("it has moved", || (rig.in_flight(chosen), rig.in_flight(other)) == (0, 1)).await;
    envoy.answer_body("{}", true).await;
    envoy.passed_back(2).await;
    rig.quiet().await;
    // An address that nobody knows moves nothing, and blames nobody.
    let mut envoy = rig.stream().await;
    envoy.chat(CHAT).await;
    envoy.answer_head(served("192.0.2.7:1"), &[(":status", "200")]).await;
    envoy.answered().await;
    assert_eq!(rig.router.load().0, 1);
    envoy.answer_body("{}", true).await;
    rig.quiet().await;
}

#[tokio::test]
async fn where_envoy_keeps_the_answer_the_replicas_own_count_releases() {
    let rig = Rig::with(1, |c| c.poll.interval = homing::config::Seconds::from_millis(10)).await;
    for early in [true, false] {
        let mut envoy = rig.stream().await;
        envoy.modes = Some((4, 0));
        envoy.chat(CHAT).await;
        if !early {
            envoy.answer_head(None, &[(":status", "200")]).await;
            envoy.answered().await;
        }
        let page = |running| Page { running: Some(running), waiting: Some(0), ..Page::default() };
        rig.router.page(rig.ids[0], page(1));
        envoy.close().await;
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        assert_eq!(rig.router.load().0, 1, "the replica says that it works on it");
        rig.router.page(rig.ids[0], page(0));
        rig.quiet().await;
    }
}

#[tokio::test]
async fn a_failed_answer_is_no_answer() {
    let rig = Rig::start(1).await;
    for _ in 0..3 {
        let mut envoy = rig.stream().await;
        envoy.chat(CHAT).await;
        envoy.answer_head(None, &[(":status", "502"), ("status", "200")]).await;
        envoy.answered().await;
    }
    rig.quiet().await;
    let state = rig.router.replicas()[0].state;
    assert_eq!(state, "suspect", "`:status` counts, not `status`");
}

#[tokio::test]
async fn a_thousand_streams_on_one_connection_at_once() {
    let rig = Rig::with(4, |c| c.queue.max = 10_000).await;
    let client = rig.client().await;
    let mut all = Vec::new();
    for _ in 0..1000 {
        let mut client = client.clone();
        all.push(tokio::spawn(async move {
            let mut envoy = Envoy::on(&mut client).await;
            envoy.chat(CHAT).await;
            envoy
        }));
    }
    let mut open = Vec::new();
    for one in all {
        open.push(one.await.unwrap());
    }
    assert_eq!(rig.router.load(), (1000, 0));
    for mut envoy in open.drain(..500) {
        envoy.finish().await;
    }
    eventually("half have ended", || rig.router.load() == (500, 0)).await;
    drop((open, client));
    rig.quiet().await;
}

#[tokio::test]
async fn a_lost_connection_gives_everything_back() {
    let rig = Rig::start(2).await;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut client = rig.client().await;
    let addr = rig.addr;
    let held = runtime
        .spawn(async move {
            let mut other =
                envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient::connect(
                    format!("http://{addr}"),
                )
                .await
                .unwrap();
            let mut held = Vec::new();
            for _ in 0..20 {
                let mut envoy = Envoy::on(&mut other).await;
                envoy.chat(CHAT).await;
                held.push(envoy);
            }
            held
        })
        .await
        .unwrap();
    assert_eq!(rig.router.load().0, 20);
    // The other side dies with all its tasks.
    runtime.shutdown_background();
    std::mem::forget(held);
    rig.quiet().await;
    Envoy::on(&mut client).await.chat(CHAT).await;
}

#[tokio::test]
async fn a_filter_that_is_set_up_wrongly_is_told_so() {
    let rig = Rig::start(1).await;
    let mut envoy = rig.stream().await;
    envoy.modes = Some((2, 4));
    envoy.post(None, &[], CHAT).await;
    let status = envoy.fails().await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("FULL_DUPLEX_STREAMED"));
}

#[tokio::test]
async fn the_same_request_id_twice_is_two_requests() {
    let rig = Rig::start(2).await;
    let (mut a, mut b) = (rig.stream().await, rig.stream().await);
    for envoy in [&mut a, &mut b] {
        envoy.post(None, &[("x-request-id", "twice")], CHAT).await;
        envoy.picked().await;
        envoy.passed_on().await;
    }
    assert_eq!(rig.router.load().0, 2);
    a.finish().await;
    b.finish().await;
    rig.quiet().await;
}
