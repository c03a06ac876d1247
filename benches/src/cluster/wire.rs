//! What went over the wire: the kernel's own count for each TCP connection of a process (`TCP_INFO`), as `ss` shows it.

use std::process::Command;

use crate::error::{Attempt, BenchError};

/// Bytes of payload that the TCP connections of a process have sent so far, repeats among them.
///
/// # Errors
/// `ss` (of iproute2) is not there, or does not show it.
pub(crate) fn sent_by(pid: u32) -> Result<u64, BenchError> {
    let output = Command::new("ss")
        .args([
            "--tcp",
            "--info",
            "--processes",
            "--numeric",
            "--no-header",
            "--oneline",
        ])
        .output()
        .attempt(|| "cannot count what went over the wire: `ss` of iproute2 cannot be run".to_owned())?;
    Ok(sum_of(&String::from_utf8_lossy(&output.stdout), pid))
}

fn sum_of(connections: &str, pid: u32) -> u64 {
    let owner = format!("pid={pid},");
    let sent = |line: &str| -> Option<u64> {
        let field = line
            .split_whitespace()
            .find_map(|field| field.strip_prefix("bytes_sent:"))?;
        field.parse().ok()
    };
    connections
        .lines()
        .filter(|line| line.contains(&owner))
        .filter_map(sent)
        .sum()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::{sent_by, sum_of};

    #[test]
    fn connections_of_the_process_are_summed() {
        let shown = "ESTAB 0 0 127.0.0.1:1 127.0.0.1:2 users:((\"a\",pid=12,fd=3)) cubic bytes_sent:100 bytes_acked:90\n\
                     ESTAB 0 0 127.0.0.1:2 127.0.0.1:1 users:((\"b\",pid=123,fd=3)) cubic bytes_sent:7\n\
                     ESTAB 0 0 127.0.0.1:5 127.0.0.1:1 users:((\"a\",pid=12,fd=9)) cubic bytes_received:7\n\
                     ESTAB 0 0 127.0.0.1:5 127.0.0.1:1 users:((\"a\",pid=12,fd=4)) cubic bytes_sent:11";
        assert_eq!((sum_of(shown, 12), sum_of(shown, 123), sum_of(shown, 1)), (111, 7, 0));
    }

    #[test]
    fn the_kernel_counts_what_this_process_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut out = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut incoming, _) = listener.accept().expect("accepted");
        let Ok(before) = sent_by(std::process::id()) else {
            eprintln!("ss is not here: nothing to test");
            return;
        };
        out.write_all(&[7; 100_000]).expect("sent");
        incoming.read_exact(&mut [0; 100_000]).expect("received");
        let after = sent_by(std::process::id()).expect("as before");
        assert!(after >= before + 100_000, "{before} {after}");
    }
}
