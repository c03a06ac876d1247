//! Handshake and token.

use std::time::Duration;

use proptest::prelude::*;
use shuffle_protocol::control;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::ids::{JobId, NodeAddress};
use shuffle_protocol::limits::{VERSION_MAX, VERSION_MIN};
use shuffle_protocol::session::{CheckedHello, Features, JobToken, Secret, TOKEN_BYTES, negotiate};

fn secret(byte: u8) -> Secret {
    Secret::new(vec![byte; 32]).expect("a long secret")
}

// ------------------------------------------------------------------------------- versions

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_highest_common_version_is_chosen(a in 0u32..6, b in 0u32..6, c in 0u32..6, d in 0u32..6) {
        let common = (0..6).rev().find(|v| (a..=b).contains(v) && (c..=d).contains(v));
        match negotiate(a..=b, c..=d) {
            Ok(version) => prop_assert_eq!(Some(version), common),
            Err(error) => {
                prop_assert_eq!(common, None);
                let kind = ErrorKind::VersionMismatch { ours: (a, b), theirs: (c, d) };
                prop_assert_eq!(error.kind(), &kind);
            }
        }
    }
}

/// F131: a later initiator is served by the version in common, or told both ranges.
#[test]
fn other_versions_are_named() {
    let hello = |min, max| control::Hello {
        version_min: min,
        version_max: max,
        role: control::Role::Executor.into(),
        job: 3,
        ..control::Hello::default()
    };
    let Ok(CheckedHello::Executor(checked)) = hello(1, 7).check() else {
        panic!("version 1 is common")
    };
    assert_eq!(checked.version, 1);
    for (min, max) in [(VERSION_MAX + 1, VERSION_MAX + 2), (0, 0), (u32::MAX, 0), (2, 1)] {
        let error = hello(min, max).check().unwrap_err();
        let (ours, theirs) = ((VERSION_MIN, VERSION_MAX), (min, max));
        assert_eq!(error.kind(), &ErrorKind::VersionMismatch { ours, theirs });
        let words = error.to_string();
        assert!(words.contains("ours 1..=1") && words.contains(&format!("theirs {min}..={max}")));
    }
}

// ------------------------------------------------------------------------------- hello and welcome

fn peer() -> control::Hello {
    control::Hello {
        version_min: 1,
        version_max: 1,
        features: u64::MAX,
        role: control::Role::Peer.into(),
        node: "a:1".to_owned(),
        expected_node: "b:2".to_owned(),
        incarnation: 5,
        generation: 6,
        buffer_bytes: 32 << 10,
        stripe: 1,
        ..control::Hello::default()
    }
}

fn executor() -> control::Hello {
    control::Hello {
        version_min: 1,
        version_max: 1,
        role: control::Role::Executor.into(),
        job: 3,
        name: "executor 1".to_owned(),
        token: JobToken::mint(&secret(1), JobId::new(3), 100).to_bytes().to_vec(),
        ..control::Hello::default()
    }
}

fn refused(hello: &control::Hello) -> ErrorKind {
    hello.check().expect_err("a bad hello").kind().clone()
}

#[test]
fn hellos_are_checked() {
    let Ok(CheckedHello::Peer(hello)) = peer().check() else {
        panic!("a good peer")
    };
    assert_eq!(
        (hello.generation.value(), hello.stripe, hello.features.bits()),
        (6, 1, Features::OURS.bits())
    );
    let Ok(CheckedHello::Executor(hello)) = executor().check() else {
        panic!("a good executor")
    };
    assert!(hello.token.unwrap().verify(&secret(1), hello.job, 0).is_ok());

    let bad_peers = [
        control::Hello { role: 0, ..peer() },
        control::Hello { role: 3, ..peer() },
        control::Hello {
            node: String::new(),
            ..peer()
        },
        control::Hello {
            node: "a:0".to_owned(),
            ..peer()
        },
        control::Hello {
            expected_node: "../b:1".to_owned(),
            ..peer()
        },
        control::Hello {
            expected_node: "a:1".to_owned(),
            ..peer()
        },
        control::Hello {
            buffer_bytes: 0,
            ..peer()
        },
        control::Hello {
            buffer_bytes: u32::MAX,
            ..peer()
        },
        control::Hello {
            name: "line\nbreak".to_owned(),
            ..executor()
        },
    ];
    for hello in bad_peers {
        assert_eq!(refused(&hello), ErrorKind::InvalidRequest, "{hello:?}");
    }
    for hello in [
        control::Hello { stripe: 64, ..peer() },
        control::Hello {
            name: "x".repeat(129),
            ..executor()
        },
        control::Hello {
            token: vec![0; 513],
            ..executor()
        },
    ] {
        assert!(matches!(refused(&hello), ErrorKind::LimitExceeded { .. }), "{hello:?}");
    }
    assert_eq!(
        refused(&control::Hello {
            token: vec![1; 48],
            ..executor()
        }),
        ErrorKind::Denied
    );
}

/// F49: nodes with different buffer sizes, and a node under another name.
#[test]
fn sides_that_do_not_fit_are_named() {
    let Ok(CheckedHello::Peer(hello)) = peer().check() else {
        panic!("a good peer")
    };
    let b = NodeAddress::parse("b:2").unwrap();
    assert_eq!(hello.check_fits(&b, 32 << 10), Ok(()));
    let error = hello.check_fits(&b, 64 << 10).unwrap_err();
    assert_eq!(
        error.to_string(),
        "buffer size in bytes differs: ours 65536, theirs 32768 (node a:1)"
    );
    let error = hello
        .check_fits(&NodeAddress::parse("c:3").unwrap(), 32 << 10)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "node address differs: ours c:3, theirs b:2 (node a:1)"
    );
}

#[test]
fn welcomes_are_checked() {
    let good = control::Welcome {
        version: 1,
        node: "b:2".to_owned(),
        buffer_bytes: 32 << 10,
        keepalive_interval_ms: 5_000,
        dead_peer_after_ms: 15_000,
        request_timeout_ms: 30_000,
        ..control::Welcome::default()
    };
    let accepted = good.check().unwrap();
    assert_eq!(accepted.dead_peer_after, Duration::from_secs(15), "F129: milliseconds");
    assert_eq!(accepted.request_timeout, Duration::from_secs(30));
    let bad = [
        control::Welcome {
            version: 0,
            ..good.clone()
        },
        control::Welcome {
            version: 2,
            ..good.clone()
        },
        control::Welcome {
            features: 1 << 40,
            ..good.clone()
        },
        control::Welcome {
            node: "b".to_owned(),
            ..good.clone()
        },
        control::Welcome {
            buffer_bytes: 1,
            ..good.clone()
        },
        control::Welcome {
            keepalive_interval_ms: 0,
            ..good.clone()
        },
        control::Welcome {
            keepalive_interval_ms: 15_000,
            ..good.clone()
        },
        control::Welcome {
            dead_peer_after_ms: u32::MAX,
            ..good.clone()
        },
    ];
    for welcome in bad {
        assert!(welcome.check().is_err(), "{welcome:?}");
    }
}

#[test]
fn addresses_have_one_spelling() {
    for good in [
        "a:1",
        "node-1.example_x:65535",
        "127.0.0.1:80",
        "[::1]:8080",
        "[fe80::1%eth0]:1",
    ] {
        assert_eq!(NodeAddress::parse(good).unwrap().to_string(), good);
    }
    let long = format!("{}:1", "x".repeat(254));
    for bad in [
        "", ":", "a", "a:", ":1", "a:0", "a:01", "a:+1", "a:65536", "a:1 ", " a:1", "a b:1", "::1:80", "[]:1",
        "[a]b:1", "a\0:1", "a\n:1", "../a:1", "ä:1", "a:1:2", &long,
    ] {
        assert!(NodeAddress::parse(bad).is_err(), "{bad:?}");
    }
}

// ------------------------------------------------------------------------------- token

#[test]
fn a_token_opens_its_job_until_it_ends() {
    let (job, other) = (JobId::new(3), JobId::new(4));
    let token = JobToken::mint(&secret(1), job, 100);
    let token = JobToken::from_bytes(&token.to_bytes()).unwrap();
    assert_eq!(token.verify(&secret(1), job, 99), Ok(()));
    for (secret, job, now, why) in [
        (secret(2), job, 99, "secret"),
        (secret(1), other, 99, "another job"),
        (secret(1), job, 100, "expired"),
        (secret(1), job, u64::MAX, "expired"),
    ] {
        let error = token.verify(&secret, job, now).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Denied);
        assert!(error.message().contains(why), "{error}");
    }
}

/// F105: every truncation and every flipped bit of a token is refused.
#[test]
fn a_damaged_token_opens_nothing() {
    let job = JobId::new(3);
    let bytes = JobToken::mint(&secret(1), job, 100).to_bytes();
    for length in 0..TOKEN_BYTES {
        assert!(JobToken::from_bytes(&bytes[..length]).is_err());
    }
    assert!(JobToken::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    for bit in 0..TOKEN_BYTES * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let opened = JobToken::from_bytes(&bytes).and_then(|token| token.verify(&secret(1), token.job, 0));
        assert!(opened.is_err(), "bit {bit}");
    }
}

/// F118: neither the secret nor the part of a token that cannot be guessed is ever shown.
#[test]
fn secrets_do_not_show() {
    let secret = Secret::new(*b"the secret of the cluster").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret(..)");
    let token = JobToken::mint(&secret, JobId::new(3), 100);
    assert_eq!(
        format!("{token:?}"),
        "JobToken { job: JobId(3), expires_unix_seconds: 100, .. }"
    );
    assert!(Secret::new(*b"short").is_err() && Secret::new(vec![0; 1025]).is_err());
    let error = Secret::new(*b"shown?").unwrap_err();
    assert!(!error.to_string().contains("shown?"));
}
