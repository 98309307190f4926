//! gRPC: one method of a tonic client over two servers on this machine, of which one takes half a second.
//!
//! The layer is put around calls with messages, not around the channels: a message can be copied, and the reply is then
//! the whole message and not the head of a stream. With a generated client, `replica` calls its method instead of
//! `Grpc::unary`.
//!
//! `cargo run -p hedgerow-hedge-tower --example tonic`
#![allow(clippy::disallowed_methods, reason = "an example starts its servers and reads the clock")]

use hedgerow_hedge_tower::{Classify, HedgeLayer, Outcome};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tonic::client::Grpc;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, ServiceExt, service_fn};

/// What `protoc` would make of `message Question { string name = 1; }`.
#[derive(Clone, PartialEq, prost::Message)]
struct Question {
    #[prost(string, tag = "1")]
    name: String,
}

/// And of `message Answer { string greeting = 1; }`.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(string, tag = "1")]
    greeting: String,
}

/// The method only reads. Errors that a server has by itself are another one's chance; others would be the same there.
#[derive(Clone, Copy)]
struct Greet;

impl Classify<Question, Response<Answer>, Status> for Greet {
    fn may_hedge(&self, _: &Question) -> bool {
        true
    }

    fn clone_request(&self, question: &Question) -> Option<Question> {
        Some(question.clone())
    }

    fn outcome(&self, result: &Result<Response<Answer>, Status>) -> Outcome {
        match result.as_ref().map_err(Status::code) {
            Ok(_) => Outcome::Success,
            Err(Code::Unavailable | Code::ResourceExhausted | Code::Aborted) => Outcome::NonFatal,
            Err(_) => Outcome::Fatal,
        }
    }
}

/// One server as a service of the method. The connection is made by the first call, and again after it was lost.
fn replica(address: SocketAddr) -> impl Service<Question, Response = Response<Answer>, Error = Status> + Clone {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let client: Grpc<Channel> = Grpc::new(endpoint.connect_lazy());
    service_fn(move |question: Question| {
        let mut client = client.clone();
        async move {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = "/hello.Greeter/Greet".parse().expect("a path");
            client.unary(Request::new(question), path, ProstCodec::<Question, Answer>::default()).await
        }
    })
}

/// Serves until the process ends.
async fn serve(listener: TcpListener, takes: Duration) {
    let greet = move |request: Request<Question>| async move {
        tokio::time::sleep(takes).await;
        Ok::<_, Status>(Response::new(Answer { greeting: format!("hello {}", request.into_inner().name) }))
    };
    let service = service_fn(move |request: hyper::Request<tonic::body::Body>| async move {
        let codec = ProstCodec::<Answer, Question>::default();
        Ok::<_, Infallible>(tonic::server::Grpc::new(codec).unary(service_fn(greet), request).await)
    });
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = Server::builder().serve_with_incoming(service, incoming).await;
    served.expect("the server goes on");
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut addresses = Vec::new();
    for takes in [Duration::from_millis(500), Duration::ZERO] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        tokio::spawn(serve(listener, takes));
    }
    let layer = HedgeLayer::new("20ms".parse().expect("a policy"), Greet);
    let mut greeter = layer.over(addresses.into_iter().map(replica));
    for name in ["Ada", "Grace", "Barbara", "Frances"] {
        let start = Instant::now();
        let call = greeter.ready().await.expect("channels are always ready").call(Question { name: name.to_owned() });
        let answer = call.await.expect("an answer").into_inner();
        println!("{:<16} after {:>3} ms", answer.greeting, start.elapsed().as_millis());
    }
    let counters = layer.counters();
    println!("{} requests, {} hedges", counters.first, counters.sent.iter().sum::<u64>());
    Ok(())
}
