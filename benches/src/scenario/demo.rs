//! `demo`: TPC-H rows by order key over all consumers of two nodes.

use super::plan::{ConsumerPlan, Plan, Total};
use super::{publish, run};
use crate::cli::DemoArgs;
use crate::console::Console;
use crate::error::BenchError;
use crate::executor::Source;
use crate::report::ShuffleReport;
use crate::rows::estimated_lineitem_rows;

/// Runs the demonstration.
///
/// # Errors
/// It did not come to its end. A run that did, but was not verified, is no error.
pub(crate) async fn demo(args: &DemoArgs, console: &mut Console) -> Result<ShuffleReport, BenchError> {
    let parts = args.producers * NODES;
    let sources = (0..parts)
        .map(|part| Source::Lineitem {
            scale: args.scale,
            part,
            parts,
        })
        .collect();
    let consumers = (0..u32::from(args.consumers * NODES))
        .map(|first| ConsumerPlan {
            first,
            count: 1,
            files: Vec::new(),
        })
        .collect();
    let mut plan = Plan::new(NODES, sources, consumers, &args.common)?;
    plan.total = Some(Total::Rows(estimated_lineitem_rows(args.scale)));
    let pool = plan.pool;
    console.say(format!(
        "TPC-H lineitem at scale {}: {parts} producers and {} consumers on {NODES} nodes, pools of {} buffers of {} bytes",
        args.scale,
        args.consumers * NODES,
        pool.buffers,
        pool.buffer_bytes
    ));
    let outcome = run::run(plan, console).await?;
    publish("demo", &outcome, pool.bytes(), &args.common, console)
}

const NODES: u16 = 2;
