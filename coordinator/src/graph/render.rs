//! A graph to look at: as text, and for Graphviz.

use std::fmt::{self, Write as _};

use super::JobGraph;
use super::edge::{Dependency, Distribution, Edge};
use super::validate::in_words;
use crate::ids::StageId;

/// One stage on a line, below it one line for each input.
///
/// ```
/// # use coordinator::{EdgeSpec, JobGraph, Stage};
/// let graph = JobGraph::builder()
///     .stage(Stage::new("scan").fixed(4))
///     .stage(Stage::new("count").adaptive(1, 8).subpartitions(64))
///     .edge(EdgeSpec::keyed("scan", "count"))
///     .build()?;
/// assert_eq!(graph.to_string(), "scan: 4 tasks\ncount: 1 to 8 tasks\n  <- scan: keyed, regular, 64 subpartitions\n");
/// # Ok::<(), coordinator::GraphErrors>(())
/// ```
impl fmt::Display for JobGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &stage in self.topological_order() {
            writeln!(f, "{}: {}", self.stage(stage).name, self.tasks(stage))?;
            for (edge, from) in self.inputs(stage) {
                writeln!(f, "  <- {}: {}", self.stage(from).name, self.in_words(self.edge(edge)))?;
            }
        }
        Ok(())
    }
}

impl JobGraph {
    /// The graph in the language of Graphviz: pipelined edges bold, regular ones dashed.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph job {\n  rankdir=LR;\n  node [shape=box];\n");
        for (at, stage) in self.stages.iter().enumerate() {
            let label = format!("{}\n{}", stage.name, self.tasks(StageId::from_index(at)));
            push_line(&mut dot, format_args!("s{at} [label={}]", quoted(&label)));
        }
        for edge in &self.edges {
            let style = match edge.dependency {
                Dependency::Pipelined => "bold",
                Dependency::Regular => "dashed",
            };
            let label = quoted(&self.in_words(edge));
            let (from, to) = (edge.from, edge.to);
            push_line(
                &mut dot,
                format_args!("s{from} -> s{to} [style={style}, label={label}]"),
            );
        }
        dot.push_str("}\n");
        dot
    }

    fn tasks(&self, stage: StageId) -> String {
        let stage = self.stage(stage);
        let slots = match stage.slots_per_task {
            1 => String::new(),
            slots => format!(", {slots} slots each"),
        };
        let open = if stage.open_result { ", open result" } else { "" };
        let tasks = in_words(stage.parallelism);
        let word = if tasks == "1" { "task" } else { "tasks" };
        format!("{tasks} {word}{slots}{open}")
    }

    fn in_words(&self, edge: &Edge) -> String {
        let mut words = format!("{}, {}", edge.distribution, edge.dependency);
        let subpartitions = self.stage(edge.to).input_subpartitions();
        let differ = subpartitions != self.stage(edge.to).parallelism.max();
        if matches!(edge.distribution, Distribution::Keyed | Distribution::Rebalance) && differ {
            words.push_str(&format!(", {subpartitions} subpartitions"));
        }
        if edge.splittable {
            words.push_str(", splittable");
        }
        words
    }
}

fn push_line(text: &mut String, line: fmt::Arguments<'_>) {
    writeln!(text, "  {line};").expect("invariant: a String takes everything");
}

/// A quoted string of Graphviz: a quote and a backslash are escaped, a line break is `\n`.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
