//! Our ends of the wire against another implementation of ZeroMQ.

use crate::rig::{complete, prompts, small};
use bytes::Bytes;
use homing::engine::kv::decode;
use homing::engine::kv::zmtp::{Kind, Received, Wire};
use homing::sim::http::Mock;
use std::time::Duration;
use tokio::net::TcpStream;
use zeromq::{DealerSocket, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

fn message(frames: &[&[u8]]) -> ZmqMessage {
    ZmqMessage::try_from(frames.iter().map(|f| Bytes::copy_from_slice(f)).collect::<Vec<_>>()).unwrap()
}

fn address(endpoint: &zeromq::Endpoint) -> String {
    endpoint.to_string().trim_start_matches("tcp://").to_owned()
}

#[tokio::test]
async fn our_subscriber_hears_another_publisher() {
    let mut publisher = PubSocket::new();
    let at = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(address(&at)).await.unwrap();
    let mut wire = Wire::open(stream, Kind::Sub).await.unwrap();
    wire.subscribe(b"kv@").await.unwrap();
    let big = vec![7u8; 100_000];
    // A subscription takes effect when the publisher has read it.
    let heard = async {
        loop {
            if let Received::Message(frames) = wire.recv().await.unwrap() {
                return frames;
            }
        }
    };
    tokio::pin!(heard);
    let frames = loop {
        publisher.send(message(&[b"other", b"x", b"y"])).await.unwrap();
        publisher.send(message(&[b"kv@a", &5u64.to_be_bytes(), &big])).await.unwrap();
        if let Ok(frames) = tokio::time::timeout(Duration::from_millis(50), &mut heard).await {
            break frames;
        }
    };
    assert_eq!(
        (&frames[0][..], &frames[1][..], frames[2].len()),
        (&b"kv@a"[..], &5u64.to_be_bytes()[..], 100_000)
    );
}

#[tokio::test]
async fn another_subscriber_hears_the_simulated_engine() {
    let mock = Mock::start(small(4096)).await.unwrap();
    let (events, _) = mock.kv_endpoints().unwrap();
    let mut subscriber = SubSocket::new();
    subscriber.connect(&format!("tcp://{events}")).await.unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    complete(mock.addr(), &prompts(1, 1)[0], false).await;
    let heard = tokio::time::timeout(Duration::from_secs(10), subscriber.recv()).await.unwrap().unwrap();
    assert_eq!((heard.len(), &heard.get(0).unwrap()[..]), (3, &b"kv@mock"[..]));
    assert!(!decode(heard.get(2).unwrap()).unwrap().events.is_empty());
}

#[tokio::test]
async fn our_question_reaches_another_router_and_its_answers_reach_us() {
    let mut router = RouterSocket::new();
    let at = router.bind("tcp://127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(address(&at)).await.unwrap();
    let mut wire = Wire::open(stream, Kind::Dealer).await.unwrap();
    wire.send(&[b"", &3u64.to_be_bytes()]).await.unwrap();
    let asked = router.recv().await.unwrap();
    assert_eq!((asked.len(), &asked.get(2).unwrap()[..]), (3, &3u64.to_be_bytes()[..]));
    let who = asked.get(0).unwrap().clone();
    for n in 3..6u64 {
        router.send(message(&[&who, b"", b"kv@a", &n.to_be_bytes(), b"payload"])).await.unwrap();
    }
    for n in 3..6u64 {
        let Received::Message(frames) = wire.recv().await.unwrap() else { panic!("a command") };
        assert_eq!((frames.len(), &frames[2][..]), (4, &n.to_be_bytes()[..]));
    }
}

#[tokio::test]
async fn the_simulated_engine_answers_another_dealer() {
    let mock = Mock::start(small(4096)).await.unwrap();
    for text in prompts(3, 1) {
        complete(mock.addr(), &text, false).await;
    }
    let (_, replay) = mock.kv_endpoints().unwrap();
    let mut dealer = DealerSocket::new();
    dealer.connect(&format!("tcp://{replay}")).await.unwrap();
    dealer.send(message(&[b"", &1u64.to_be_bytes()])).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let answer = tokio::time::timeout(Duration::from_secs(10), dealer.recv()).await.unwrap().unwrap();
        let seq = i64::from_be_bytes(answer.get(2).unwrap()[..].try_into().unwrap());
        if seq < 0 {
            break;
        }
        seen.push(seq);
    }
    assert_eq!(seen.first(), Some(&1));
    assert!(seen.len() > 1 && seen.windows(2).all(|w| w[1] == w[0] + 1), "{seen:?}");
}
