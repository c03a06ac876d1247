//! A server that does only what the test says: it speaks the frames, owns two arenas, and decides nothing.

use std::future::Future;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::time::Duration;

use buffer_pool::{ArenaFile, MappedArena};
use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shuffle_client::{AttachOptions, Gate, GateSpec, PartitionSpec, Session, Writer};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{self, Hello, Welcome};
use shuffle_protocol::error::{Result, ShuffleError};
use shuffle_protocol::frame::{
    DataHead, Deframer, EndEntry, Event, Frame, FrameKind, GrantEntry, NumberEntry, ReleaseEntry, SlotEntry,
    encode_control, encode_data_head, encode_ends, encode_grants, encode_numbers, encode_slots,
};
use shuffle_protocol::ids::{JobId, PartitionId, ResultId, StreamId, SubpartitionIndex, SubpartitionRange, WriterId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

pub(crate) const BUFFER_BYTES: u32 = 4096;
pub(crate) const BUFFERS: u32 = 16;
pub(crate) const MAX_RECORD_BYTES: u64 = 1 << 20;
pub(crate) const JOB: u64 = 3;
pub(crate) const NODE: &str = "here:7";

/// Nothing in these tests takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

pub(crate) fn partition() -> PartitionId {
    PartitionId {
        result: ResultId::new(7),
        index: 11,
        attempt: 5,
    }
}

pub(crate) fn sub(index: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(index)
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        version: 1,
        node: NODE.to_owned(),
        incarnation: 1,
        buffer_bytes: BUFFER_BYTES,
        keepalive_interval_ms: 5_000,
        dead_peer_after_ms: 60_000,
        arena_buffers: BUFFERS,
        max_record_bytes: MAX_RECORD_BYTES,
        request_timeout_ms: 30_000,
        max_queued_per_subpartition: 10,
        ..Welcome::default()
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

pub(crate) struct Fake {
    stream: Stream,
    deframer: Deframer,
    pub(crate) write: MappedArena,
    pub(crate) read: MappedArena,
    files: [ArenaFile; 2],
    pub(crate) hello: Hello,
}

/// A session over shared memory, and its server.
pub(crate) async fn attach() -> (Session, Fake) {
    attach_with(welcome()).await
}

pub(crate) async fn attach_with(welcome: Welcome) -> (Session, Fake) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let options = AttachOptions::new(JobId::new(JOB))
        .socket(socket)
        .name("tester")
        .token(*b"secret");
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        Fake::new(Stream::Unix(stream)).shake_hands(&welcome).await
    };
    let (session, fake) = soon("attaching", async { tokio::join!(Session::attach(options), serve) }).await;
    (session.unwrap(), fake)
}

/// The same over TCP.
pub(crate) async fn attach_tcp() -> (Session, Fake) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = AttachOptions::new(JobId::new(JOB)).tcp(address);
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        Fake::new(Stream::Tcp(stream))
            .shake_hands(&Welcome {
                arena_buffers: 0,
                ..welcome()
            })
            .await
    };
    let (session, fake) = soon("attaching", async { tokio::join!(Session::attach(options), serve) }).await;
    (session.unwrap(), fake)
}

impl Fake {
    fn new(stream: Stream) -> Self {
        let bytes = u64::from(BUFFERS) * u64::from(BUFFER_BYTES);
        let files = ["write", "read"].map(|name| ArenaFile::create(name, bytes, bytes).unwrap());
        for file in &files {
            file.allocate(0).unwrap();
        }
        let [write, read] = [&files[0], &files[1]]
            .map(|file| MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER_BYTES).unwrap());
        Self {
            stream,
            deframer: Deframer::new(),
            write,
            read,
            files,
            hello: Hello::default(),
        }
    }

    async fn shake_hands(mut self, welcome: &Welcome) -> Self {
        let Message::Hello(hello) = self.message().await else {
            panic!("a hello comes first")
        };
        self.hello = hello;
        let mut frame = BytesMut::new();
        encode_control(&Message::Welcome(welcome.clone()), &mut frame).unwrap();
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(&frame).await.unwrap(),
            Stream::Unix(stream) => {
                stream.writable().await.unwrap();
                let descriptors = [self.files[0].writable_fd(), self.files[1].readonly_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
                let sent = sendmsg(&stream, &[IoSlice::new(&frame)], &mut ancillary, SendFlags::empty()).unwrap();
                assert_eq!(sent, frame.len());
            }
        }
        self
    }

    // ------------------------------------------------------------------------------------------------ receiving

    pub(crate) async fn event(&mut self) -> Option<Event> {
        soon("a frame", async {
            loop {
                if let Some(event) = self.deframer.poll_event().unwrap() {
                    return Some(event);
                }
                let space = self.deframer.space();
                let n = match &mut self.stream {
                    Stream::Unix(stream) => stream.read(space).await,
                    Stream::Tcp(stream) => stream.read(space).await,
                };
                match n.unwrap_or(0) {
                    0 => return None,
                    n => self.deframer.handle_read(n),
                }
            }
        })
        .await
    }

    pub(crate) async fn frame(&mut self) -> Frame {
        match self.event().await {
            Some(Event::Frame(frame)) => frame,
            other => panic!("a frame without payload was due, not {other:?}"),
        }
    }

    pub(crate) async fn message(&mut self) -> Message {
        match self.frame().await {
            Frame::Control(message) => *message,
            other => panic!("a message was due, not {other:?}"),
        }
    }

    pub(crate) async fn demand(&mut self) -> NumberEntry {
        match self.frame().await {
            Frame::Demand(demands) => demands.iter().next().unwrap(),
            other => panic!("a demand was due, not {other:?}"),
        }
    }

    /// The next descriptors, passing over demands.
    pub(crate) async fn slots(&mut self) -> Vec<SlotEntry> {
        loop {
            match self.frame().await {
                Frame::Slots(slots) => return slots.iter().collect(),
                Frame::Demand(_) => {}
                other => panic!("slots were due, not {other:?}"),
            }
        }
    }

    /// So many descriptors, one after the other.
    pub(crate) async fn take_slots(&mut self, count: usize) -> Vec<SlotEntry> {
        let mut slots = Vec::new();
        while slots.len() < count {
            slots.extend(self.slots().await);
        }
        assert_eq!(slots.len(), count);
        slots
    }

    /// Releases until there are so many, passing over demands and acknowledgements.
    pub(crate) async fn take_releases(&mut self, count: usize) -> Vec<ReleaseEntry> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.frame().await {
                Frame::Release(releases) => all.extend(releases.iter()),
                Frame::Demand(_) | Frame::Ack(_) => {}
                other => panic!("releases were due, not {other:?}"),
            }
        }
        assert_eq!(all.len(), count);
        all
    }

    /// Acknowledgements until one says `below`.
    pub(crate) async fn take_ack(&mut self, below: u64) {
        loop {
            match self.frame().await {
                Frame::Ack(acks) if acks.iter().any(|ack| ack.number == below) => return,
                Frame::Ack(_) | Frame::Release(_) => {}
                other => panic!("an acknowledgement was due, not {other:?}"),
            }
        }
    }

    /// The next message, passing over entries of any kind.
    pub(crate) async fn next_message(&mut self) -> Message {
        loop {
            if let Frame::Control(message) = self.frame().await {
                return *message;
            }
        }
    }

    /// The payload of a data frame whose head has come.
    pub(crate) async fn payload(&mut self, head: &DataHead) -> Vec<u8> {
        let mut bytes = vec![0; head.payload_bytes as usize];
        let Stream::Tcp(stream) = &mut self.stream else {
            panic!("payload comes inline over TCP only")
        };
        soon("payload", stream.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    /// What a writer handed over.
    pub(crate) fn bytes_of(&self, entry: &SlotEntry) -> Vec<u8> {
        self.write
            .shared(entry.slot, entry.offset, entry.length)
            .unwrap()
            .to_vec()
    }

    // -------------------------------------------------------------------------------------------------- sending

    pub(crate) async fn send(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        encode(&mut bytes);
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let sent = match &mut self.stream {
            Stream::Unix(stream) => soon("sending", stream.write_all(bytes)).await,
            Stream::Tcp(stream) => soon("sending", stream.write_all(bytes)).await,
        };
        sent.unwrap();
    }

    pub(crate) async fn say(&mut self, message: Message) {
        self.send(|out| encode_control(&message, out).unwrap()).await;
    }

    pub(crate) async fn reply(&mut self, request: u64, error: Option<&ShuffleError>) {
        let error = error.map(Into::into);
        self.say(Message::Reply(control::Reply {
            request,
            error,
            status: None,
        }))
        .await;
    }

    pub(crate) async fn grant(&mut self, writer: u32, slots: impl IntoIterator<Item = u32>) {
        let writer = WriterId::new(writer);
        let grants: Vec<_> = slots.into_iter().map(|slot| GrantEntry { writer, slot }).collect();
        self.send(|out| encode_grants(&grants, out)).await;
    }

    pub(crate) async fn limit(&mut self, writer: u32, subpartition: u32, number: u64) {
        let entry = NumberEntry {
            stream: StreamId::new(writer),
            subpartition: sub(subpartition),
            number,
        };
        self.send(|out| encode_numbers(FrameKind::Credit, &[entry], out)).await;
    }

    pub(crate) async fn deliver(&mut self, slots: &[SlotEntry]) {
        self.send(|out| encode_slots(slots, out)).await;
    }

    pub(crate) async fn end(&mut self, end: EndEntry) {
        self.send(|out| encode_ends(&[end], out)).await;
    }

    pub(crate) async fn data(&mut self, entry: SlotEntry, payload: &[u8]) {
        self.send(|out| {
            encode_data_head(entry.stream, entry.sequence, &[entry], out);
            out.extend_from_slice(payload);
        })
        .await;
    }

    // ------------------------------------------------------------------------------------- both, for one purpose

    /// Answers the creation of a partition; gives the writer and the first demand.
    pub(crate) async fn accept_writer(&mut self) -> (control::CreatePartition, u64) {
        let Message::CreatePartition(create) = self.next_message().await else {
            panic!("a creation")
        };
        self.reply(create.request, None).await;
        (create, self.demand().await.number)
    }

    pub(crate) async fn accept_gate(&mut self) -> control::OpenGate {
        let Message::OpenGate(open) = self.next_message().await else {
            panic!("a gate")
        };
        self.reply(open.request, None).await;
        open
    }

    pub(crate) async fn writer(&mut self, session: &Session, spec: PartitionSpec) -> (Writer, u32) {
        let (writer, (create, _)) = tokio::join!(session.create_partition(spec), self.accept_writer());
        (writer.unwrap(), create.writer)
    }

    pub(crate) async fn gate(&mut self, session: &Session, spec: GateSpec) -> (Gate, control::OpenGate) {
        let (gate, open) = tokio::join!(session.open_gate(spec), self.accept_gate());
        (gate.unwrap(), open)
    }
}

pub(crate) fn one_channel() -> GateSpec {
    GateSpec::new().channel(None, partition(), SubpartitionRange::new(0, 1).unwrap())
}

pub(crate) fn error_of<T: std::fmt::Debug>(result: Result<T>) -> ShuffleError {
    result.expect_err("an error was due")
}
