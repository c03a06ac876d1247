//! What an executor may not do to its server.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::encode_control;

use crate::program::{Server, executor, hear, say};

/// The welcome and the two descriptors beside it.
fn attach(stream: &UnixStream) -> Vec<OwnedFd> {
    let mut stream = stream;
    say(&mut stream, Message::Hello(executor(1)));
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("a welcome");
    ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn an_executor_that_takes_more_memory_than_it_was_granted_is_dropped() {
    let server = Server::start(&[]);
    let mut stream = server.unix();
    let arenas = attach(&stream);
    assert_eq!(arenas.len(), 2, "write arena and read arena");
    assert!(
        rustix::io::pwrite(&arenas[1], b"x", 0).is_err(),
        "the read arena is read-only"
    );
    let mut neighbour = server.unix();
    say(&mut neighbour, Message::Hello(executor(2)));
    assert!(matches!(hear(&mut neighbour), Some(Message::Welcome(_))));
    rustix::io::pwrite(&arenas[0], b"x", 32 << 10).unwrap();
    let Some(Message::Goodbye(goodbye)) = hear(&mut stream) else {
        panic!("a goodbye")
    };
    assert!(goodbye.reason.unwrap().message.contains("beyond what was granted"));
    say(
        &mut neighbour,
        Message::Status(shuffle_protocol::control::Status { request: 1 }),
    );
    assert!(
        matches!(hear(&mut neighbour), Some(Message::Reply(_))),
        "another job goes on"
    );
}

#[test]
fn who_asks_without_listening_is_not_listened_to_either() {
    let server = Server::start(&[]);
    let mut stream = server.unix();
    say(&mut stream, Message::Hello(executor(1)));
    hear(&mut stream);
    let mut frame = BytesMut::new();
    for request in 0..1000 {
        encode_control(
            &Message::Status(shuffle_protocol::control::Status { request }),
            &mut frame,
        )
        .unwrap();
    }
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let blocked = (0..2000).find(|_| stream.write_all(&frame).is_err());
    assert!(blocked.is_some(), "two million questions were taken");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert!(kib("VmRSS:") - kib("RssShmem:") < 32 << 10, "{status}");
    let mut other = server.unix();
    say(&mut other, Message::Hello(executor(1)));
    assert!(
        matches!(hear(&mut other), Some(Message::Welcome(_))),
        "others are served"
    );
}
