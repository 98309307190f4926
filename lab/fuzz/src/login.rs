//! Logins by password: whatever either end may say instead of what comes next.

use hedgerow_scram::{Answer, Asked, Challenge, Login, MECHANISM, Mask, Negotiation, Nonce, Password, Verifier};

const BINDING: [u8; 32] = [3; 32];
const USER: &str = "app";

/// Each line is one thing that the client says, and all of it what the server does.
pub(crate) fn as_login(data: &[u8]) {
    let mut server = selected();
    for (number, line) in data.split(|byte| *byte == b'\n').take(4).enumerate() {
        let asked = if number % 2 == 0 { Asked::Initiate(line) } else { Asked::Response(line) };
        let answer = server.handle(asked, challenge);
        assert!(!matches!(answer, Ok(Answer::Accepted { .. })), "nobody knows a password for this verifier");
        if answer.is_err() {
            assert!(server.user().is_none() && server.handle(Asked::Mechanisms, challenge).is_err(), "it is over");
            break;
        }
    }
    let (login, _) = Login::begin(USER, &Nonce::new([1; 18]), Some(BINDING));
    let _ = login.handle_challenge(data);
    let text = String::from_utf8_lossy(data);
    if let Ok(verifier) = text.parse::<Verifier>() {
        assert!(*verifier.to_text() == *text, "it is written as it was read");
    }
    let _ = Password::chosen(&text);
}

fn challenge(user: &str) -> Challenge {
    let verifier = Mask::new([2; 32]).verifier(user);
    Challenge { verifier, is_known: true, nonce: Nonce::new([4; 18]), binding: Some(BINDING) }
}

fn selected() -> Negotiation {
    let mut server = Negotiation::default();
    server.handle(Asked::Select(MECHANISM.as_bytes()), challenge).expect("it is the one that is offered");
    server
}

/// What both ends say, with a wrong password.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let (login, first) = Login::begin(USER, &Nonce::new([1; 18]), Some(BINDING));
    let answer = selected().handle(Asked::Initiate(first.as_bytes()), challenge);
    let Ok(Answer::Challenge(challenged)) = answer else { panic!("{answer:?}") };
    let hashing = login.handle_challenge(challenged.as_bytes()).expect("the server says it so");
    let (salt, _) = hashing.with();
    let password = Password::new("a password").expect("it may be one");
    let (_, last) = hashing.prove(&password.salted(&salt, 1));
    let verifier = Mask::new([2; 32]).verifier(USER).to_text();
    let whole = format!("{first}\n{}", *last);
    [("challenge", challenged), ("client", whole), ("verifier", verifier.to_string())]
        .into_iter()
        .map(|(name, text)| (format!("login-{name}"), text.into_bytes()))
        .collect()
}
