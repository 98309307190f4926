//! Logins from the first message to the last, and whatever else may come instead.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_scram::{
    Answer, Asked, Binding, Challenge, Failure, ITERATIONS_MAX, ITERATIONS_MIN, Login, LoginError, MECHANISM,
    MESSAGE_SIZE_MAX, Mask, Negotiation, Nonce, Password, PasswordError, Verifier, VerifierError,
};
use proptest::prelude::*;

const BINDING: Binding = [7; 32];
const PASSWORD: &str = "a long pencil";

fn verifier(password: &str) -> Verifier {
    Verifier::new(&Password::new(password).unwrap(), &[5; 16], ITERATIONS_MIN)
}

fn challenge(verifier: Verifier) -> Challenge {
    Challenge { verifier, is_known: true, nonce: Nonce::new([2; 18]), binding: Some(BINDING) }
}

fn nobody(_: &str) -> Challenge {
    panic!("nobody was named")
}

/// One that waits for the client's first message.
fn selected() -> Negotiation {
    let mut server = Negotiation::default();
    assert_eq!(server.handle(Asked::Mechanisms, nobody), Ok(Answer::Mechanisms(MECHANISM)));
    assert_eq!(server.handle(Asked::Select(MECHANISM.as_bytes()), nobody), Ok(Answer::Selected));
    server
}

fn text(answer: Result<Answer, Failure>) -> String {
    match answer.unwrap() {
        Answer::Challenge(text) => text,
        other => panic!("{other:?}"),
    }
}

/// Logs in, and says what the client makes of the server's last word.
fn log_in(password: &str, known: Challenge, binding: Option<Binding>) -> Result<Result<(), LoginError>, Failure> {
    let mut server = selected();
    let (login, first) = Login::begin("app", &Nonce::new([1; 18]), binding);
    let answer = server.handle(Asked::Initiate(first.as_bytes()), |user| {
        assert_eq!(user, "app");
        known
    })?;
    assert_eq!(server.user(), Some("app"));
    let hashing = login.handle_challenge(text(Ok(answer)).as_bytes()).unwrap();
    let (salt, iterations) = hashing.with();
    let salted = Password::new(password).unwrap().salted(&salt, iterations);
    let (proven, last) = hashing.prove(&salted);
    let answer = server.handle(Asked::Response(last.as_bytes()), nobody);
    assert_eq!(server.handle(Asked::Mechanisms, nobody), Err(Failure::OutOfTurn));
    match answer? {
        Answer::Accepted { user, message } => {
            assert_eq!(user, "app");
            Ok(proven.handle_accepted(message.as_bytes()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_knows_the_password_gets_in_and_nobody_else() {
    let bound = Some(BINDING);
    assert_eq!(log_in(PASSWORD, challenge(verifier(PASSWORD)), bound), Ok(Ok(())));
    assert_eq!(log_in("another pencil", challenge(verifier(PASSWORD)), bound), Err(Failure::Proof));
    // Nobody is behind a name that is not known, whatever is proven.
    let unknown = Challenge { is_known: false, ..challenge(verifier(PASSWORD)) };
    assert_eq!(log_in(PASSWORD, unknown, bound), Err(Failure::Proof));
    let masked = Challenge { is_known: false, ..challenge(Mask::new([9; 32]).verifier("app")) };
    assert_eq!(log_in(PASSWORD, masked, bound), Err(Failure::Proof));
}

#[test]
fn a_login_is_bound_to_its_connection() {
    let of = |binding| Challenge { binding, ..challenge(verifier(PASSWORD)) };
    assert_eq!(log_in(PASSWORD, of(Some([8; 32])), Some(BINDING)), Err(Failure::OtherConnection));
    assert_eq!(log_in(PASSWORD, of(Some(BINDING)), None), Err(Failure::NotBound));
    assert_eq!(log_in(PASSWORD, of(None), Some(BINDING)), Err(Failure::OtherConnection));
    assert_eq!(log_in(PASSWORD, of(None), None), Ok(Ok(())));
    // The client believes that the server cannot: somebody has told it so.
    let first = |text: &str| selected().handle(Asked::Initiate(text.as_bytes()), |_| of(Some(BINDING)));
    assert_eq!(first("y,,n=app,r=abc"), Err(Failure::NotBound));
    assert_eq!(first("p=tls-unique,,n=app,r=abc"), Err(Failure::OtherConnection));
    // The flag is part of what is proven: who changes it on the way is found out, the binding left alone.
    let mut server = selected();
    let (login, message) = Login::begin("app", &Nonce::new([1; 18]), None);
    let bound = message.replacen("n,,", "p=tls-exporter,,", 1);
    let answer = text(server.handle(Asked::Initiate(bound.as_bytes()), |_| of(Some(BINDING))));
    let hashing = login.handle_challenge(answer.as_bytes()).unwrap();
    let (salt, iterations) = hashing.with();
    let (_, last) = hashing.prove(&Password::new(PASSWORD).unwrap().salted(&salt, iterations));
    assert_eq!(server.handle(Asked::Response(last.as_bytes()), nobody), Err(Failure::OtherConnection));
}

#[test]
fn what_was_said_in_one_login_proves_nothing_in_another() {
    let mut first = selected();
    let (login, message) = Login::begin("app", &Nonce::new([1; 18]), Some(BINDING));
    let answer = text(first.handle(Asked::Initiate(message.as_bytes()), |_| challenge(verifier(PASSWORD))));
    let hashing = login.handle_challenge(answer.as_bytes()).unwrap();
    let (salt, iterations) = hashing.with();
    let (_, last) = hashing.prove(&Password::new(PASSWORD).unwrap().salted(&salt, iterations));
    let mut second = selected();
    let other = Challenge { nonce: Nonce::new([3; 18]), ..challenge(verifier(PASSWORD)) };
    second.handle(Asked::Initiate(message.as_bytes()), |_| other).unwrap();
    assert_eq!(second.handle(Asked::Response(last.as_bytes()), nobody), Err(Failure::Proof));
}

#[test]
fn only_what_comes_next_goes_on() {
    let initiate = Asked::Initiate(b"p=tls-exporter,,n=app,r=abc");
    let response = Asked::Response(b"c=,r=,p=");
    for wrong in [initiate, response] {
        assert_eq!(Negotiation::default().handle(wrong, nobody), Err(Failure::OutOfTurn));
    }
    for wrong in [Asked::Mechanisms, Asked::Select(MECHANISM.as_bytes()), response] {
        assert_eq!(selected().handle(wrong, nobody), Err(Failure::OutOfTurn));
    }
    for wrong in [Asked::Mechanisms, Asked::Select(MECHANISM.as_bytes()), initiate] {
        let mut server = selected();
        text(server.handle(initiate, |_| challenge(verifier(PASSWORD))));
        assert_eq!(server.handle(wrong, nobody), Err(Failure::OutOfTurn));
        assert_eq!((server.user(), server.verifier()), (None, None));
    }
    for name in ["SCRAM-SHA-256", "GSSAPI", ""] {
        let mut server = Negotiation::default();
        assert_eq!(server.handle(Asked::Select(name.as_bytes()), nobody), Err(Failure::Mechanism));
        assert_eq!(server.handle(Asked::Select(MECHANISM.as_bytes()), nobody), Err(Failure::OutOfTurn));
    }
}

#[test]
fn what_is_malformed_names_nobody() {
    let long = "a".repeat(256);
    let larger = format!("n,,n=app,r=abc,x={}", "a".repeat(MESSAGE_SIZE_MAX));
    let named = format!("n,,n={long},r=abc");
    let malformed = [
        "",
        "n",
        "n,",
        "n,,",
        "x,,n=app,r=abc",
        "n,a=eve,n=app,r=abc",
        "n,,r=abc,n=app",
        "n,,n=,r=abc",
        "n,,n=app",
        "n,,n=app,r=",
        "n,,n=app,r=a b",
        "n,,n=a=b,r=abc",
        "n,,n=a=2,r=abc",
        "n,,m=x,n=app,r=abc",
        "n,,n=a\0b,r=abc",
        &larger,
        &named,
    ];
    for text in malformed {
        assert_eq!(selected().handle(Asked::Initiate(text.as_bytes()), nobody), Err(Failure::Malformed), "{text:?}");
    }
    let named = |text: &str| {
        let mut user = String::new();
        let answer = selected().handle(Asked::Initiate(text.as_bytes()), |name| {
            user.push_str(name);
            Challenge { binding: None, ..challenge(verifier(PASSWORD)) }
        });
        answer.map(|_| user)
    };
    assert_eq!(named("n,,n=a=2Cb=3D=3Dc,r=abc,x=ext"), Ok("a,b==c".to_owned()));
}

#[test]
fn a_client_takes_only_answers_to_its_own_login() {
    let begun = || Login::begin("a,=b", &Nonce::new([1; 18]), Some(BINDING));
    let (_, message) = begun();
    assert!(message.starts_with("p=tls-exporter,,n=a=2C=3Db,r="), "{message}");
    let nonce = message.rsplit_once("r=").unwrap().1.to_owned();
    let of = |text: &str| begun().0.handle_challenge(text.as_bytes()).map(drop);
    assert_eq!(of(&format!("r={nonce}x,s=AAAA,i=4096")), Ok(()));
    assert_eq!(of(&format!("r={nonce},s=AAAA,i=4096")), Err(LoginError::OtherLogin));
    assert_eq!(of("r=x,s=AAAA,i=4096"), Err(LoginError::OtherLogin));
    for iterations in [0, ITERATIONS_MIN - 1, ITERATIONS_MAX + 1] {
        assert_eq!(of(&format!("r={nonce}x,s=AAAA,i={iterations}")), Err(LoginError::Iterations(iterations)));
    }
    for text in
        ["", "r=x", "e=other-error", "r=x,s=,i=4096", "r=x,s=*,i=4096", "r=x,s=AAAA,i=-1", "m=x,r=x,s=AAAA,i=4096"]
    {
        assert_eq!(of(text), Err(LoginError::Malformed), "{text:?}");
    }
    let hashing = begun().0.handle_challenge(format!("r={nonce}x,s=AAAA,i=4096").as_bytes()).unwrap();
    let (proven, _) = hashing.prove(&Password::new(PASSWORD).unwrap().salted(&[0; 3], 4_096));
    let wrong = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
    assert_eq!(proven.handle_accepted(wrong.as_bytes()), Err(LoginError::Signature));
    for text in ["", "v=", "v=AAAA", "e=invalid-proof"] {
        assert_eq!(proven.handle_accepted(text.as_bytes()), Err(LoginError::Malformed), "{text:?}");
    }
}

#[test]
fn passwords_that_look_the_same_are_the_same_and_some_cannot_be() {
    let salted = |text: &str| verifier(text);
    // A soft hyphen is nothing, and a Roman four two letters (RFC 4013, section 3).
    assert!(salted("I\u{AD}X") == salted("IX") && salted("\u{2168}") == salted("IX"));
    assert!(salted("ix") != salted("IX"));
    let told = |text: &str| Password::chosen(text).map(drop);
    assert_eq!(told("twelve chars"), Ok(()));
    assert_eq!(told("zwölf Zeich"), Err(PasswordError::TooShort(11)));
    assert_eq!(told(""), Err(PasswordError::Empty));
    assert_eq!(told("with a \u{7} bell"), Err(PasswordError::Characters));
    assert_eq!(told(&"a".repeat(1_025)), Err(PasswordError::TooLong(1_025)));
    assert_eq!(Password::new("short").map(drop), Ok(()));
}

#[test]
fn verifiers_are_read_as_they_are_written_and_nothing_prints_a_secret() {
    let verifier = verifier(PASSWORD);
    let text = verifier.to_text();
    assert!(text.starts_with("SCRAM-SHA-256$4096:BQUFBQUFBQUFBQUFBQUFBQ==$"), "{}", *text);
    assert!(text.parse() == Ok(verifier.clone()));
    for wrong in [
        text.replace("256$", "1$"),
        text.replace('$', ":"),
        text.replace("4096", "04096"),
        format!("{} ", *text),
        text.replace("==$", "=$"),
        text.replace("4096:BQUFBQUFBQUFBQUFBQUFBQ==", "4096:"),
        String::new(),
    ] {
        assert_eq!(wrong.parse::<Verifier>(), Err(VerifierError::Form), "{wrong}");
    }
    assert_eq!(text.replace("4096", "4095").parse::<Verifier>(), Err(VerifierError::Iterations(4_095)));
    let mask = Mask::new([9; 32]);
    assert!(mask.to_text().parse() == Ok(mask.clone()) && "AAAA".parse::<Mask>().is_err());
    assert!(mask.verifier("a") == mask.verifier("a") && mask.verifier("a") != mask.verifier("b"));
    let password = Password::new(PASSWORD).unwrap();
    let salted = password.salted(b"salt", 1);
    let printed = format!("{verifier:?} {mask:?} {password:?} {salted:?} {:?}", Nonce::new([1; 18]));
    assert_eq!(printed, "Verifier Mask Password Salted Nonce");
}

/// Bytes that are nearly messages.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        "[nyp]",
        "p=tls-exporter",
        "[nrsicpvaem]=[!-~]{0,20}",
        "c=[A-Za-z0-9+/=]{0,40}",
        "r=[!-+--~]{0,20}",
        "p=[A-Za-z0-9+/]{43}=",
        "",
    ];
    let joined = proptest::collection::vec(part, 0..7).prop_map(|parts| parts.join(",").into_bytes());
    prop_oneof![joined, proptest::collection::vec(any::<u8>(), 0..64)]
}

proptest! {
    #[test]
    fn no_bytes_make_either_end_panic_or_let_anybody_in(said in proptest::collection::vec((0..4, message()), 0..8)) {
        let mut server = selected();
        for (kind, message) in &said {
            let asked = match kind {
                0 => Asked::Mechanisms,
                1 => Asked::Select(message),
                2 => Asked::Initiate(message),
                _ => Asked::Response(message),
            };
            let answer = server.handle(asked, |user| challenge(Mask::new([1; 32]).verifier(user)));
            let is_in = matches!(answer, Ok(Answer::Accepted { .. }));
            prop_assert!(!is_in);
            let (login, _) = Login::begin("app", &Nonce::new([1; 18]), Some(BINDING));
            let _ = login.handle_challenge(message);
            let text = String::from_utf8_lossy(message);
            let _ = (text.parse::<Verifier>(), text.parse::<Mask>(), Password::chosen(&text));
        }
    }
}
