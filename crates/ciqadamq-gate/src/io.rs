//! The client's side of a connection: plain or TLS, one type for both.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// How long a client may take to receive the last bytes of a connection that failed before CONNECT.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much of what it still sends is read meanwhile.
const LAST_READ_BYTES_MAX: usize = 64 * 1024;

/// A client's byte stream. TLS state is boxed: it is large, and plain connections should not carry its size.
#[derive(Debug)]
pub(crate) enum ClientIo {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientIo {
    /// Sends `bytes` as the last of the connection and ends it so that the client can read them: closing a socket that has
    /// unread input makes the kernel send a reset, and the client's kernel may then drop what it had for the client.
    pub(crate) async fn finish(&mut self, bytes: &[u8]) {
        let last_words = async {
            self.write_all(bytes).await?;
            self.shutdown().await?;
            let mut buf = [0; 512];
            let mut read = 0;
            while read < LAST_READ_BYTES_MAX {
                match self.read(&mut buf).await? {
                    0 => break,
                    n => read += n,
                }
            }
            io::Result::Ok(())
        };
        // A courtesy to the client: if it cannot be reached, the connection ends all the same.
        let _ = timeout(LAST_WORDS, last_words).await;
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
