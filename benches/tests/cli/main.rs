//! The program `shuffle-bench` as a user sees it.

mod demo;
mod repartition;
mod run;
mod throughput;
