//! Arrow Flight: record batches of the same bytes through `do_get`.
//!
//! HTTP/2 windows and frames are as large as helps; a batch is one message; the giver uses the memory of
//! a column again once it is encoded; one thread on each side, as everywhere.

mod service;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::flight_service_server::FlightServiceServer;
use arrow_flight::{FlightClient, Ticket};
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use super::{End, PairLoad, changed, failed};
use crate::executor::{ExecutorError, Orders};
use crate::load::{Done, Event, Reader, Stopwatch, emit, in_runtime};
use service::{Batches, Giver};

/// One end of the pair.
pub(super) fn run(load: &PairLoad) -> Result<Done, ExecutorError> {
    let load = load.clone();
    in_runtime(async move {
        match &load.end {
            End::Give { .. } => give(&load).await,
            End::Take { address } => take(&load, address).await,
        }
    })
}

async fn give(load: &PairLoad) -> Result<Done, ExecutorError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed("listening"))?;
    let address = listener.local_addr().map_err(failed("listening"))?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let (end, ended) = oneshot::channel();
    let giver = Giver(Mutex::new(Some(Batches::new(load, end))));
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .add_service(FlightServiceServer::new(giver).max_encoding_message_size(usize::MAX))
        .serve_with_incoming_shutdown(incoming, async {
            let _ = stopped.await;
        });
    let serving = tokio::spawn(serving);
    emit(&Event::Listening(address.to_string()));
    emit(&Event::Ready);
    Orders::new().wait_for_go().await?;
    let watch = Stopwatch::start();
    let totals = ended
        .await
        .map_err(|_| ExecutorError::Other("the taker is gone".to_owned()))?;
    // Ends once everything is sent.
    let _ = stop.send(());
    serving
        .await
        .map_err(failed("the Flight service"))?
        .map_err(failed("the Flight service"))?;
    Ok(watch.stop(totals))
}

async fn take(load: &PairLoad, address: &str) -> Result<Done, ExecutorError> {
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .map_err(failed(address))?
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .tcp_nodelay(true)
        .connect()
        .await
        .map_err(failed("connecting"))?;
    let client = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut client = FlightClient::new_from_inner(client);
    emit(&Event::Ready);
    Orders::new().wait_for_go().await?;
    let watch = Stopwatch::start();
    let mut batches = client.do_get(Ticket::new("words")).await.map_err(failed("do_get"))?;
    let head = if load.checksums { HEAD_BYTES } else { 0 };
    let mut reader = Reader::new();
    let mut piece = 0;
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(failed("a batch"))?;
        let words = batch.column(0).as_primitive::<UInt64Type>().values();
        let bytes = words.inner().as_slice();
        if load.checksums && bytes[..head] != u64::from(crc32fast::hash(&bytes[head..])).to_le_bytes() {
            return Err(changed(piece));
        }
        reader.read(&bytes[head..]);
        piece += 1;
    }
    Ok(watch.stop(reader.totals()))
}

/// Bytes in front of a piece that hold its checksum, if there is one.
const HEAD_BYTES: usize = 8;
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME_BYTES: u32 = 1 << 20;
