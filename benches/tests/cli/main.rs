//! The program `shuffle-bench` as a user sees it.

mod compare;
mod demo;
mod disk;
mod job;
mod latency;
mod repartition;
mod run;
mod scale;
mod throughput;
