//! Text that cannot be read side by side (standard input, a pipe): read once here, and sent in blocks
//! of whole lines to whichever producer is free.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::{Mutex, mpsc};

use crate::executor::{END_OF_TEXT, block_order};
use crate::text::BlockReader;

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Feed {
    Standard,
    /// A named pipe or device.
    Path(PathBuf),
}

impl Feed {
    /// What the input is called in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Standard => "standard input".to_owned(),
            Self::Path(path) => path.display().to_string(),
        }
    }
}

/// How the feeding goes, seen from outside.
#[derive(Debug, Default)]
pub(super) struct FeedState {
    /// The input is awaited: nothing else can move.
    waiting: AtomicBool,
}

impl FeedState {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }
}

type NumberedBlock = (u64, Vec<u8>);

/// Starts to read and to send. An error in the input arrives at the returned channel.
pub(super) fn start(feed: Feed, producers: Vec<ChildStdin>) -> (Arc<FeedState>, mpsc::Receiver<String>) {
    let state = Arc::new(FeedState::default());
    let (blocks, receiver) = mpsc::channel::<NumberedBlock>(QUEUED_BLOCKS);
    let (errors, problem) = mpsc::channel(1);
    let reading = Arc::clone(&state);
    // A thread of its own: a read of standard input cannot be broken off, and must not keep the
    // runtime from ending.
    std::thread::spawn(move || {
        if let Err(error) = read(&feed, &blocks, &reading) {
            let _ = errors.blocking_send(error);
        }
        reading.waiting.store(false, Ordering::Relaxed);
    });
    let receiver = Arc::new(Mutex::new(receiver));
    for producer in producers {
        tokio::spawn(send(producer, Arc::clone(&receiver)));
    }
    (state, problem)
}

fn read(feed: &Feed, blocks: &mpsc::Sender<NumberedBlock>, state: &FeedState) -> Result<(), String> {
    let name = feed.name();
    match feed {
        Feed::Standard => read_from(std::io::stdin().lock(), &name, blocks, state),
        Feed::Path(path) => {
            let file = std::fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
            read_from(file, &name, blocks, state)
        }
    }
}

fn read_from(
    input: impl Read,
    name: &str,
    blocks: &mpsc::Sender<NumberedBlock>,
    state: &FeedState,
) -> Result<(), String> {
    let mut reader = BlockReader::new(input, None);
    loop {
        state.waiting.store(true, Ordering::Relaxed);
        let block = reader.next_block();
        state.waiting.store(false, Ordering::Relaxed);
        match block {
            Ok(Some(block)) => {
                let owned = (block.first_line, block.bytes.to_vec());
                if blocks.blocking_send(owned).is_err() {
                    return Ok(());
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
}

/// Sends blocks to one producer until there are none left. A producer that is gone reports itself.
async fn send(mut producer: ChildStdin, blocks: Arc<Mutex<mpsc::Receiver<NumberedBlock>>>) {
    loop {
        let block = blocks.lock().await.recv().await;
        let sent = match &block {
            Some((first_line, bytes)) => {
                let head = block_order(*first_line, bytes.len());
                match producer.write_all(head.as_bytes()).await {
                    Ok(()) => producer.write_all(bytes).await,
                    Err(error) => Err(error),
                }
            }
            None => producer.write_all(END_OF_TEXT).await,
        };
        if block.is_none() || sent.is_err() {
            return;
        }
    }
}

const QUEUED_BLOCKS: usize = 2;
