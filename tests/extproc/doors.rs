//! Ports: TLS, health, and the way out.

use super::rig::*;
use homing::proxy::Phase;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::codegen::Service;
use tonic::transport::{Endpoint, Uri};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Envoy's manners: TLS without a look at the certificate.
#[derive(Clone)]
struct Trusting(SocketAddr);

#[derive(Debug)]
struct AnyCertificate(rustls::crypto::CryptoProvider);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls_pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls_pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl Service<Uri> for Trusting {
    type Response = TokioIo<TlsStream<tokio::net::TcpStream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let at = self.0;
        Box::pin(async move {
            let provider = rustls::crypto::ring::default_provider();
            let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth();
            config.alpn_protocols = vec![b"h2".to_vec()];
            let socket = tokio::net::TcpStream::connect(at).await?;
            let name = rustls_pki_types::ServerName::try_from("homing").unwrap();
            let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

async fn health_at(at: SocketAddr) -> Option<HealthClient<tonic::transport::Channel>> {
    let channel = Endpoint::try_from(format!("http://{at}")).unwrap().connect().await.ok()?;
    Some(HealthClient::new(channel))
}

#[tokio::test]
async fn tls_with_a_certificate_of_its_own_is_the_default() {
    let rig = Rig::with(1, |c| c.extproc.plaintext = false).await;
    let channel =
        Endpoint::from_static("http://homing").connect_with_connector(Trusting(rig.addr)).await.unwrap();
    use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
    let mut client = ExternalProcessorClient::new(channel.clone());
    let mut envoy = Envoy::on(&mut client).await;
    assert_eq!(envoy.chat(CHAT).await.destination, "10.0.0.1:8000");
    envoy.finish().await;
    let mut health = HealthClient::new(channel);
    let request = HealthCheckRequest { service: "readiness".into() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let plain = async {
        let mut client = health_at(rig.addr).await.ok_or(())?;
        client.check(HealthCheckRequest::default()).await.map_err(|_| ())
    };
    assert!(plain.await.is_err(), "not without TLS");
}

#[tokio::test]
async fn health_is_told_on_both_ports_for_four_names() {
    let rig = Rig::start(1).await;
    for at in [rig.health, rig.addr] {
        let mut client = health_at(at).await.unwrap();
        for service in ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"] {
            let request = HealthCheckRequest { service: service.into() };
            let status = client.check(request.clone()).await.unwrap().into_inner().status();
            assert_eq!(status, ServingStatus::Serving, "{service}");
            let mut watch = client.watch(request).await.unwrap().into_inner();
            assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        }
        let request = HealthCheckRequest { service: "other".into() };
        assert_eq!(client.check(request.clone()).await.unwrap_err().code(), Code::NotFound);
        let mut watch = client.watch(request).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    }
}

#[tokio::test]
async fn readiness_follows_the_fleet_and_the_drain_and_liveness_stays() {
    let rig = Rig::start(1).await;
    let mut client = health_at(rig.health).await.unwrap();
    let ask = |service: &str| HealthCheckRequest { service: service.into() };
    let mut watch = client.watch(ask("readiness")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    rig.router.drain(rig.ids[0], true);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    rig.router.drain(rig.ids[0], false);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    rig.phase.send_replace(Phase::Draining);
    assert_eq!(client.check(ask("")).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    assert_eq!(client.check(ask("liveness")).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let mut envoy = rig.stream().await;
    envoy.chat(CHAT).await;
}

#[tokio::test]
async fn a_stream_underway_ends_normally_in_a_drain() {
    let rig = Rig::start(1).await;
    let mut client = rig.client().await;
    let mut envoy = Envoy::on(&mut client).await;
    envoy.chat(CHAT).await;
    rig.phase.send_replace(Phase::Closing);
    eventually("nothing new is taken", || std::net::TcpStream::connect(rig.addr).is_err()).await;
    envoy.finish().await;
    envoy.close().await;
    drop(client);
    rig.ended.await.unwrap();
    assert_eq!(rig.router.load(), (0, 0));
}

#[tokio::test]
async fn what_outlasts_the_grace_period_is_cut_and_given_back() {
    let rig = Rig::with(1, |c| c.drain.grace = homing::config::Seconds::from_millis(50)).await;
    let mut envoy = rig.stream().await;
    envoy.chat(CHAT).await;
    rig.phase.send_replace(Phase::Closing);
    rig.ended.await.unwrap();
    assert_eq!(rig.router.load(), (0, 0));
}
