//! Who takes part in a run and how each is doing. Decides when all are done and when enough is known
//! about a failure; reads no clock and starts nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cluster::ChildId;
use crate::error::{RoleFailure, RunFailure};
use crate::executor::{ConsumerResult, Event, ProducerResult};

/// A process of the run.
#[derive(Debug)]
struct Member {
    label: String,
    kind: Kind,
    rows: u64,
    bytes: u64,
    state: State,
}

/// What a process is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Server,
    Producer,
    Consumer,
}

#[derive(Debug)]
enum State {
    Starting,
    Working,
    Produced(ProducerResult),
    Consumed(ConsumerResult),
    Failed,
}

/// All processes of a run.
#[derive(Debug, Default)]
pub(super) struct Roster {
    members: BTreeMap<ChildId, Member>,
    failure: RunFailure,
    input_fault: Option<String>,
    first_failure: Option<Instant>,
    last_movement: Option<Instant>,
}

impl Roster {
    /// Adds a process; `label` names it in messages. Servers work from the beginning.
    pub(super) fn add(&mut self, id: ChildId, kind: Kind, label: String) {
        let state = if kind == Kind::Server {
            State::Working
        } else {
            State::Starting
        };
        let member = Member {
            label,
            kind,
            rows: 0,
            bytes: 0,
            state,
        };
        self.members.insert(id, member);
    }

    /// What a process is called.
    pub(super) fn label(&self, id: ChildId) -> &str {
        self.members
            .get(&id)
            .map_or("unknown process", |member| member.label.as_str())
    }

    /// Takes a report into account.
    pub(super) fn handle_event(&mut self, now: Instant, id: ChildId, event: Event) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let moved = match event {
            Event::Attached => {
                member.state = State::Working;
                true
            }
            Event::Progress { rows, bytes } => {
                let moved = rows > member.rows;
                (member.rows, member.bytes) = (rows, bytes);
                moved
            }
            Event::Produced(result) => {
                member.state = State::Produced(result);
                true
            }
            Event::Consumed(result) => {
                member.rows = result.digests.iter().map(|digest| digest.rows).sum();
                member.bytes = result.digests.iter().map(|digest| digest.bytes).sum();
                member.state = State::Consumed(result);
                true
            }
            Event::Failed { message, first_cause } => {
                if first_cause.is_none() {
                    self.input_fault.get_or_insert(message.clone());
                }
                self.fail(now, id, message, first_cause);
                true
            }
        };
        if moved {
            self.last_movement = Some(now);
        }
    }

    /// A process ended; before its time that is a failure.
    pub(super) fn handle_end(&mut self, now: Instant, id: ChildId, how: &str) {
        let unfinished = self
            .members
            .get(&id)
            .is_some_and(|member| matches!(member.state, State::Starting | State::Working));
        if unfinished {
            self.fail(now, id, format!("ended before its task did ({how})"), None);
        }
    }

    fn fail(&mut self, now: Instant, id: ChildId, message: String, first_cause: Option<String>) {
        if let Some(member) = self.members.get_mut(&id) {
            member.state = State::Failed;
            self.failure.reports.push(RoleFailure {
                role: member.label.clone(),
                message,
                first_cause,
            });
            self.first_failure.get_or_insert(now);
        }
    }

    /// Whether every executor is attached (or beyond).
    pub(super) fn are_all_attached(&self) -> bool {
        !self
            .members
            .values()
            .any(|member| matches!(member.state, State::Starting))
    }

    /// Whether every executor is done.
    pub(super) fn are_all_done(&self) -> bool {
        self.executors()
            .all(|member| matches!(member.state, State::Produced(_) | State::Consumed(_)))
    }

    /// The failure of the run, once all consumers have said what they know or the time for it is over.
    pub(super) fn poll_failure(&mut self, now: Instant) -> Option<RunFailure> {
        let since = self.first_failure?;
        let silent: Vec<String> = self
            .members
            .values()
            .filter(|member| member.kind == Kind::Consumer)
            .filter(|member| matches!(member.state, State::Starting | State::Working))
            .map(|member| member.label.clone())
            .collect();
        if !silent.is_empty() && now.duration_since(since) < TIME_TO_REPORT {
            return None;
        }
        let mut failure = std::mem::take(&mut self.failure);
        failure.silent = silent;
        // What failed by itself before what failed because of it.
        failure.reports.sort_by_key(|report| report.first_cause.is_some());
        Some(failure)
    }

    /// A failure that has nothing to do with the shuffle: a bad line, a full disk.
    pub(super) fn input_fault(&self) -> Option<&str> {
        self.input_fault.as_deref()
    }

    /// How long nothing has moved.
    pub(super) fn idle(&self, now: Instant) -> Duration {
        self.last_movement
            .map_or(Duration::ZERO, |last| now.duration_since(last))
    }

    /// Sets the clock of [`Roster::idle`] back.
    pub(super) fn touch(&mut self, now: Instant) {
        self.last_movement = Some(now);
    }

    /// Rows and bytes that consumers have.
    pub(super) fn arrived(&self) -> (u64, u64) {
        self.executors()
            .filter(|member| member.kind == Kind::Consumer)
            .fold((0, 0), |(rows, bytes), member| {
                (rows + member.rows, bytes + member.bytes)
            })
    }

    /// The results of all executors, each in the order in which they were added.
    pub(super) fn into_results(self) -> (Vec<ProducerResult>, Vec<ConsumerResult>) {
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for member in self.members.into_values() {
            match member.state {
                State::Produced(result) => producers.push(result),
                State::Consumed(result) => consumers.push(result),
                State::Starting | State::Working | State::Failed => {}
            }
        }
        (producers, consumers)
    }

    fn executors(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| member.kind != Kind::Server)
    }
}

/// How long the others have to report after the first failure: with the time to stop all processes, a
/// run ends within 5 seconds of it.
const TIME_TO_REPORT: Duration = Duration::from_millis(3_500);

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Kind, Roster, TIME_TO_REPORT};
    use crate::cluster::ChildId;
    use crate::executor::Event;

    fn roster() -> Roster {
        let mut roster = Roster::default();
        for (id, kind, label) in [
            (0, Kind::Server, "server@a"),
            (1, Kind::Consumer, "consumer-0@a"),
            (2, Kind::Consumer, "consumer-1@a"),
            (3, Kind::Producer, "producer-0@a"),
        ] {
            roster.add(ChildId(id), kind, label.to_owned());
        }
        roster
    }

    fn failed(cause: &str) -> Event {
        Event::Failed {
            message: "failed".to_owned(),
            first_cause: Some(cause.to_owned()),
        }
    }

    #[test]
    fn all_attach_before_the_start() {
        let (mut roster, now) = (roster(), Instant::now());
        for id in [1, 2, 3] {
            assert!(!roster.are_all_attached());
            roster.handle_event(now, ChildId(id), Event::Attached);
        }
        assert!(roster.are_all_attached() && !roster.are_all_done());
    }

    #[test]
    fn a_failure_waits_for_all_consumers_to_name_its_cause() {
        let (mut roster, now) = (roster(), Instant::now());
        roster.handle_event(now, ChildId(1), failed("died"));
        roster.handle_end(now, ChildId(3), "signal: 9");
        assert!(roster.poll_failure(now).is_none());
        roster.handle_event(now, ChildId(2), failed("died"));
        let failure = roster.poll_failure(now).expect("all reported");
        assert_eq!(failure.reports[0].role, "producer-0@a");
        assert_eq!(failure.common_cause(), Some("died"));
        assert!(failure.silent.is_empty());
    }

    #[test]
    fn a_consumer_that_says_nothing_is_not_waited_for_forever() {
        let (mut roster, now) = (roster(), Instant::now());
        roster.handle_event(now, ChildId(1), failed("died"));
        assert!(roster.poll_failure(now + TIME_TO_REPORT / 2).is_none());
        let failure = roster.poll_failure(now + TIME_TO_REPORT).expect("in time");
        assert_eq!(failure.silent, ["consumer-1@a"]);
    }

    #[test]
    fn a_bad_line_is_known_at_once() {
        let (mut roster, now) = (roster(), Instant::now());
        roster.handle_event(now, ChildId(1), failed("the partition failed: line 7"));
        assert_eq!(roster.input_fault(), None);
        let event = Event::Failed {
            message: "line 7".to_owned(),
            first_cause: None,
        };
        roster.handle_event(now, ChildId(3), event);
        assert_eq!(roster.input_fault(), Some("line 7"));
    }

    #[test]
    fn only_what_moves_counts_as_movement() {
        let (mut roster, now) = (roster(), Instant::now());
        let progress = Event::Progress { rows: 5, bytes: 9 };
        roster.handle_event(now, ChildId(1), progress.clone());
        let later = now + Duration::from_secs(2);
        roster.handle_event(later, ChildId(1), progress);
        assert_eq!(roster.idle(later), Duration::from_secs(2));
        assert_eq!(roster.arrived(), (5, 9));
    }
}
