//! Writes the seeds of the fuzz corpora: one of everything the protocol knows, and a few runs of the machines. To be run
//! again when the format of a frame or of a model's operations changes.

#[path = "../tests/samples/mod.rs"]
mod samples;

use std::path::Path;
use std::{fs, io};

use shuffle_protocol::frame::HEADER_BYTES;

fn main() -> io::Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let write = |target: &str, name: &str, data: &[u8]| {
        let folder = corpora.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{name}")), data)
    };

    // The first byte says how: 0 as it is, 2 with repaired checksums, 3 the same from a stranger.
    let mut all = vec![2];
    for (name, wire, _) in samples::frames() {
        write("deframer", name, &[&[0], &wire[..]].concat())?;
        all.extend(wire);
    }
    write("deframer", "all", &all)?;
    write("deframer", "stranger", &[&[3], &samples::frames()[0].1[..]].concat())?;
    write("deframer", "http", b"\0GET / HTTP/1.1\r\nHost: shuffle.example\r\n\r\n")?;

    for (index, message) in samples::messages().into_iter().enumerate() {
        let mut wire = bytes::BytesMut::new();
        shuffle_protocol::frame::encode_control(&message, &mut wire).map_err(io::Error::other)?;
        write("control", &format!("{index:02}"), &wire[HEADER_BYTES..])?;
    }

    // Send, acknowledge, resume and tell; arrive, check and end.
    write(
        "machine",
        "steady",
        &[164, 3, 0, 1, 3, 7, 1, 3, 1, 1, 81, 0, 1].repeat(6),
    )?;
    write(
        "machine",
        "resume",
        &[168, 3, 0, 0, 3, 0, 0, 2, 0, 84, 200, 6, 5, 6, 5, 0, 80].repeat(4),
    )?;

    write(
        "gate",
        "exclusive",
        &[2, 8, 0, 0, 7, 7, 1, 0, 3, 1, 9, 7, 7, 1, 1, 4, 0, 206, 1],
    )?;
    write(
        "gate",
        "floating",
        &[0, 1, 0, 0, 3, 0, 5, 3, 1, 5, 7, 7, 1, 0, 4, 0, 7, 7, 1, 1, 4, 1],
    )?;

    let step = |ops: &[(u8, u8)]| ops.iter().flat_map(|(op, n)| [*op, *n]).collect::<Vec<_>>();
    let open = step(&[
        (0, 0),
        (0, 0),
        (2, 16),
        (2, 9),
        (15, 28),
        (19, 0),
        (22, 0),
        (22, 1),
        (15, 28),
    ]);
    let send = step(&[(7, 0), (7, 1), (11, 28), (25, 0), (25, 5), (27, 0), (22, 0), (15, 28)]);
    let cut = step(&[(7, 0), (30, 255), (31, 0), (15, 28), (7, 0), (7, 1), (11, 4)]);
    let cancel = step(&[(29, 129), (15, 28), (6, 0), (7, 0), (11, 28)]);
    write("world", "steady", &[&[2, 4], &open[..], &send, &send, &cancel].concat())?;
    write("world", "cut", &[&[1, 0], &open[..], &cut, &send, &cut, &send].concat())?;
    write(
        "world",
        "floating",
        &[&[0, 0], &open[..], &send, &cut, &send, &cancel].concat(),
    )
}
