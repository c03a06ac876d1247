//! A Flight service that has one thing to give.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_buffer::{Buffer, MutableBuffer, ScalarBuffer};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tokio::sync::{Mutex, oneshot};
use tonic::{Request, Response, Status, Streaming};

use super::super::PairLoad;
use super::HEAD_BYTES;
use crate::load::{Filler, Totals};

/// Makes record batches of one column as they are asked for.
#[derive(Debug)]
pub(super) struct Batches {
    load: PairLoad,
    filler: Filler,
    schema: SchemaRef,
    made: u64,
    /// The column of the batch before: its memory is used again once the batch is encoded.
    last: Option<Buffer>,
    end: Option<oneshot::Sender<Totals>>,
}

impl Batches {
    /// `end` is told what was filled once there is no more.
    pub(super) fn new(load: &PairLoad, end: oneshot::Sender<Totals>) -> Self {
        Self {
            load: load.clone(),
            filler: Filler::new(load.index),
            schema: Arc::new(Schema::new(vec![Field::new("words", DataType::UInt64, false)])),
            made: 0,
            last: None,
            end: Some(end),
        }
    }

    fn next(&mut self) -> Option<Result<RecordBatch, FlightError>> {
        if self.made == self.load.pieces {
            if let Some(end) = self.end.take() {
                let _ = end.send(self.filler.totals());
            }
            return None;
        }
        self.made += 1;
        let head = if self.load.checksums { HEAD_BYTES } else { 0 };
        let length = head + usize::try_from(self.load.piece_bytes).expect("invariant: a length fits an address");
        let reused = self.last.take().and_then(|buffer| buffer.into_mutable().ok());
        let mut column = reused.unwrap_or_else(|| MutableBuffer::from_len_zeroed(length));
        self.filler.fill(&mut column[head..]);
        if self.load.checksums {
            let checksum = crc32fast::hash(&column[head..]);
            column[..head].copy_from_slice(&u64::from(checksum).to_le_bytes());
        }
        let column = Buffer::from(column);
        self.last = Some(column.clone());
        let words = UInt64Array::new(ScalarBuffer::from(column), None);
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::new(words)]);
        Some(batch.map_err(FlightError::from))
    }
}

/// Gives the batches to the first who asks.
#[derive(Debug)]
pub(super) struct Giver(pub(super) Mutex<Option<Batches>>);

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = BoxStream<'static, Result<T, Status>>;

fn no<T>() -> Result<T, Status> {
    Err(Status::unimplemented("this service only gives"))
}

#[tonic::async_trait]
impl FlightService for Giver {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_get(&self, _: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let Some(batches) = self.0.lock().await.take() else {
            return Err(Status::not_found("it was given away"));
        };
        let schema = Arc::clone(&batches.schema);
        let made = stream::unfold(batches, async |mut batches| {
            let batch = batches.next()?;
            Some((batch, batches))
        });
        let encoded = FlightDataEncoderBuilder::new()
            .with_schema(schema)
            // A batch is one message, however large.
            .with_max_flight_data_size(usize::MAX)
            .build(made.boxed());
        Ok(Response::new(encoded.map_err(Status::from).boxed()))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Answer<Self::HandshakeStream> {
        no()
    }
    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        no()
    }
    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        no()
    }
    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        no()
    }
    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        no()
    }
    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        no()
    }
    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoExchangeStream> {
        no()
    }
    async fn do_action(&self, _: Request<Action>) -> Answer<Self::DoActionStream> {
        no()
    }
    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        no()
    }
}
