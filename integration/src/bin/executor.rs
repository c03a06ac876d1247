//! An executor process that does what a test tells it on standard input, and says on standard
//! output what happened (see `integration::script`).

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use integration::flow::{ReadError, read_some, write_range};
use integration::oracle::Oracle;
use integration::script::{self, Command, Happened, Then};
use shuffle_client::{AttachOptions, GateSpec, PartitionSpec, Session};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{GroupId, GroupRef, JobId, NodeAddress, ShuffleError, SubpartitionRange};
use tokio::io::{AsyncBufReadExt, BufReader};

#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    job: u64,
    #[arg(long)]
    name: String,
}

/// Records between two signs of progress.
const PROGRESS_EVERY: u64 = 100;

/// How often who holds a writer looks whether it is still good.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = AttachOptions::new(JobId::new(arguments.job))
        .socket(arguments.socket)
        .name(arguments.name)
        .timeout(Duration::from_secs(10));
    let session = match Session::attach(options).await {
        Ok(session) => session,
        Err(error) => {
            eprintln!("cannot attach: {error}");
            return ExitCode::FAILURE;
        }
    };
    say(&Happened::Ready);
    let tasks = tokio::task::LocalSet::new();
    tasks.run_until(obey(session)).await
}

async fn obey(session: Session) -> ExitCode {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Command = match serde_json::from_str(&line) {
            Ok(command) => command,
            Err(error) => {
                eprintln!("not a command: {line}: {error}");
                return ExitCode::FAILURE;
            }
        };
        if let Command::Exit { code } = command {
            std::process::exit(code);
        }
        let session = session.clone();
        tokio::task::spawn_local(async move {
            let happened = match &command {
                Command::Produce { .. } => produce(session, &command).await,
                Command::Consume { .. } => consume(session, &command).await,
                Command::Exit { .. } => return,
            };
            say(&happened);
        });
    }
    ExitCode::SUCCESS
}

async fn produce(session: Session, command: &Command) -> Happened {
    let Command::Produce {
        task,
        source,
        subpartitions,
        records,
        lengths,
        buffers,
        group,
        then,
    } = command
    else {
        return wrong(0, "not a producer");
    };
    let task = *task;
    let written = async {
        let mut spec = PartitionSpec::new(source.partition_id(), *subpartitions);
        if let Some((least, most)) = buffers {
            spec = spec.buffers(*least, (*most > 0).then_some(*most));
        }
        if let Some(group) = group {
            spec = spec.group(group_ref(group)?);
        }
        let mut writer = session.create_partition(spec).await?;
        say(&Happened::Opened { task });
        let (mut done, mut bytes) = (0, 0);
        while done < *records {
            let next = (done + PROGRESS_EVERY).min(*records);
            let counts = write_range(&mut writer, *source, *subpartitions, done..next, lengths).await?;
            (done, bytes) = (next, bytes + counts.bytes);
            say(&Happened::Progress {
                task,
                records: done * u64::from(*subpartitions),
            });
        }
        let records = done * u64::from(*subpartitions);
        match then {
            Then::Finish => drop(writer.finish().await?),
            Then::Abort => {
                let cause = ShuffleError::new(ErrorKind::Aborted, "the script says so");
                writer.abort(cause).await?;
            }
            Then::Hold => {
                writer.flush().await?;
                say(&Happened::Holding { task, records });
                loop {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    writer.flush().await?;
                }
            }
        }
        Ok(Happened::Done { task, records, bytes })
    };
    written.await.unwrap_or_else(|error| failed(task, &error))
}

async fn consume(session: Session, command: &Command) -> Happened {
    let Command::Consume {
        task,
        channels,
        records,
        lengths,
        credits,
        group,
        stop_after,
    } = command
    else {
        return wrong(0, "not a consumer");
    };
    let task = *task;
    let read = async {
        let mut oracle = Oracle::new(lengths.clone());
        let mut spec = GateSpec::new();
        let mut sources = Vec::new();
        for channel in channels {
            let node = channel.node.as_deref().map(NodeAddress::parse).transpose()?;
            let range = SubpartitionRange {
                first: channel.first,
                count: channel.count,
            };
            spec = match channel.told_of {
                Some(told_of) => spec.broadcast(node, channel.source.partition_id(), told_of),
                None => spec.channel(node, channel.source.partition_id(), range),
            };
            sources.push(channel.source);
            for subpartition in channel.first..channel.first + channel.count {
                oracle.expect(channel.source, subpartition, *records);
            }
        }
        if let Some((exclusive, floating)) = credits {
            spec = spec.credits(*exclusive, *floating);
        }
        if let Some(group) = group {
            spec = spec.group(group_ref(group)?);
        }
        let mut gate = session.open_gate(spec).await?;
        say(&Happened::Opened { task });
        let mut held = Vec::new();
        loop {
            let left = stop_after.map(|stop| stop.saturating_sub(oracle.counts().records));
            if left == Some(0) {
                // Keep the views of what comes next, as far as the credits go, and drop none.
                say(&Happened::Holding {
                    task,
                    records: oracle.counts().records,
                });
                while let Some(record) = gate.next_record().await? {
                    held.push(record);
                }
                std::future::pending::<()>().await;
            }
            let step = left.unwrap_or(PROGRESS_EVERY).min(PROGRESS_EVERY);
            if !read_some(&mut gate, &sources, &mut oracle, step).await? {
                break;
            }
            say(&Happened::Progress {
                task,
                records: oracle.counts().records,
            });
        }
        let counts = oracle.handle_end()?;
        Ok(Happened::Done {
            task,
            records: counts.records,
            bytes: counts.bytes,
        })
    };
    read.await.unwrap_or_else(|error| match error {
        ReadError::Service(error) => failed(task, &error),
        ReadError::Wrong(verdict) => wrong(task, &verdict.to_string()),
    })
}

fn group_ref(group: &script::Group) -> Result<GroupRef, ShuffleError> {
    let nodes: Result<Vec<NodeAddress>, ShuffleError> =
        group.nodes.iter().map(|node| NodeAddress::parse(node)).collect();
    Ok(GroupRef {
        id: GroupId::new(group.id),
        home: NodeAddress::parse(&group.home)?,
        nodes: nodes?,
    })
}

fn failed(task: u32, error: &ShuffleError) -> Happened {
    let first = error.first_cause();
    Happened::Failed {
        task,
        kind: script::kind_name(error.kind()),
        text: error.to_string(),
        first_cause: first.to_string(),
        first_kind: script::kind_name(first.kind()),
    }
}

fn wrong(task: u32, text: &str) -> Happened {
    Happened::Wrong {
        task,
        text: text.to_owned(),
    }
}

/// One line on standard output; a test that no longer listens ends this process.
fn say(happened: &Happened) {
    let Ok(line) = serde_json::to_string(happened) else {
        return;
    };
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}
