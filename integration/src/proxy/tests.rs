use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Action, Direction, Proxy, Trigger};
use crate::wait::{until_true, within};

const LIMIT: Duration = Duration::from_secs(5);

/// A proxy in front of a listener, a client's stream and the stream that the listener accepted.
async fn connected() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = Proxy::start().await.expect("a proxy");
    proxy.set_upstream(listener.local_addr().expect("an address"));
    let client = TcpStream::connect(proxy.address()).await.expect("a connection");
    let (server, _) = within(LIMIT, "accept", listener.accept()).await.expect("accepted");
    (proxy, client, server)
}

#[tokio::test]
async fn bytes_and_the_end_pass_both_ways() {
    let (proxy, mut client, mut server) = connected().await;
    client.write_all(b"there").await.expect("written");
    client.shutdown().await.expect("shut");
    let mut got = Vec::new();
    within(LIMIT, "the end", server.read_to_end(&mut got))
        .await
        .expect("read");
    assert_eq!(got, b"there");
    server.write_all(b"back").await.expect("written");
    drop(server);
    let mut got = Vec::new();
    within(LIMIT, "the end", client.read_to_end(&mut got))
        .await
        .expect("read");
    assert_eq!(got, b"back");
    assert_eq!(proxy.bytes(Direction::Up), 5);
    until_true(LIMIT, "closed", || proxy.live() == 0).await;
}

#[tokio::test]
async fn a_cut_is_a_reset_and_says_that_it_fired() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.inject(Direction::Up, Trigger::Bytes(3), Action::Cut);
    client.write_all(b"abcdef").await.expect("written");
    let mut got = Vec::new();
    let result = within(LIMIT, "the reset", server.read_to_end(&mut got)).await;
    assert!(result.is_err() && got.len() <= 3, "{result:?} after {got:?}");
    assert_eq!(proxy.fired(), 1);
}

#[tokio::test]
async fn a_flip_changes_one_bit() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.inject(Direction::Up, Trigger::Bytes(1), Action::Flip);
    client.write_all(b"aaa").await.expect("written");
    let mut got = [0; 3];
    within(LIMIT, "three bytes", server.read_exact(&mut got))
        .await
        .expect("read");
    assert_eq!((&got, proxy.fired()), (b"a`a", 1));
}

#[tokio::test]
async fn a_black_hole_holds_and_lets_go() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.black_hole(true);
    client.write_all(b"x").await.expect("the kernel still accepts");
    let mut got = [0; 1];
    let held = tokio::time::timeout(Duration::from_millis(100), server.read_exact(&mut got)).await;
    assert!(held.is_err(), "nothing passes");
    proxy.black_hole(false);
    within(LIMIT, "the byte", server.read_exact(&mut got))
        .await
        .expect("read");
    assert_eq!(proxy.cut_all(), 1);
    until_true(LIMIT, "closed", || proxy.live() == 0).await;
}
