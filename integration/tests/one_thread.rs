//! F56: one thread is enough for everything, also for what is done from within a call-back of that same thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::stamp::{SOURCE, partition};
use integration::wait::{until, within};
use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::ShuffleError;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_runtime_of_the_current_thread_does_not_lock_itself() {
    let runtime = Builder::new_current_thread().enable_all().build();
    on_one_thread(runtime.expect("a runtime"));
}

#[test]
fn a_runtime_with_one_worker_does_not_lock_itself() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    on_one_thread(runtime.expect("a runtime"));
}

/// Beside the test's own thread: a thread that has locked itself cannot say so.
fn on_one_thread(runtime: Runtime) {
    let (done, ended) = mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        let outcome = runtime.block_on(async { tokio::spawn(connect_and_drop_in_a_callback()).await });
        done.send(()).ok();
        outcome
    });
    let stuck = ended.recv_timeout(LIMIT * 4).is_err();
    assert!(!stuck || thread.is_finished(), "the thread is stuck");
    thread.join().expect("no panic").expect("no panic");
}

/// A reader waits. The arrival of its buffer calls back, on the thread of its connection and in the middle of that
/// connection's work: there the last handles of the session are dropped and a new session is opened.
async fn connect_and_drop_in_a_callback() {
    let cluster = Cluster::pair(binaries!()).await;
    let producer = cluster.attach(0, SOURCE.job).await;
    let consumer = cluster.attach(1, SOURCE.job).await;
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 5);
    let mut writer = producer.create_partition(edge.partition()).await.expect("created");
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    // Gate and session are in the future and nowhere else.
    let reading = async move {
        let _last = consumer;
        let _ = gate.next_record().await;
    };
    let (connected, connecting) = oneshot::channel();
    let callback = Arc::new(Callback {
        reading: Mutex::new(Some(Box::pin(reading))),
        connect: Mutex::new(Some((cluster.node(1).attach_options(SOURCE.job), connected))),
        runtime: Handle::current(),
    });
    callback.poll_once();
    edge.write(&mut writer).await.expect("written");
    writer.flush().await.expect("flushed");

    let fresh = within(LIMIT, "the call-back and its connection", connecting).await;
    let fresh = fresh.expect("called back").expect("attached");
    assert!(
        callback.reading.lock().expect("not poisoned").is_none(),
        "dropped in the call-back"
    );
    let again = Edge::new(Some(cluster.node(0).address()), partition(14), 100);
    again.run(&producer, &fresh, LIMIT).await;
    until(LIMIT, "the dropped session has ended", || async {
        let status = fresh.status().await.expect("alive");
        (status["sessions"] == 1 && status["gates"] == 0).then_some(())
    })
    .await;
    drop((writer, producer, fresh));
    cluster.shut_down().await;
}

type Reading = Pin<Box<dyn Future<Output = ()> + Send>>;
type Attached = oneshot::Sender<Result<Session, ShuffleError>>;

struct Callback {
    reading: Mutex<Option<Reading>>,
    connect: Mutex<Option<(AttachOptions, Attached)>>,
    runtime: Handle,
}

impl Callback {
    /// Leaves the future waiting, with this as its waker.
    fn poll_once(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut reading = take(&self.reading).expect("polled once");
        let polled = reading.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending, "nothing has been written");
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
    }
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        drop(take(&self.reading));
        if let Some((options, connected)) = take(&self.connect) {
            self.runtime
                .spawn(async move { connected.send(Session::attach(options).await).ok() });
        }
    }
}

/// Out of the lock before it is dropped or polled: both may call back.
fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}
