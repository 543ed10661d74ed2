"""A connection as uvicorn serves it, but one that declines offers of another protocol and goes on in HTTP/1.1.

Some clients offer HTTP/2 with what they ask for (`Upgrade: h2c`: Java's own, `curl --http2`). A server may ignore that
(RFC 9110, 7.8), but the parser stops behind the header of such a request, and its body would be lost, or be read as
the next request. So the parser is begun anew, with the same request without the offer.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TLS_HANDSHAKE = b"\x16\x03"
"""How a TLS connection begins: a handshake record of version 3 (RFC 8446, 5.1)."""
_TLS = "This port speaks HTTP without TLS: use http://, not https://."


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._declines():
                self._go_on(data[offer.args[0] :])
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            said = _TLS if data.startswith(_TLS_HANDSHAKE) else "Invalid HTTP request received."
            self.logger.warning(said)
            self.send_400_response(said)

    def on_headers_complete(self) -> None:
        """Begin with the request, unless it makes an offer: it comes once more."""
        if not self._declines():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        if not self._declines():
            super().on_message_complete()

    def _declines(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def _go_on(self, rest: bytes) -> None:
        """Parse the request without its offer, then the `rest`: its body and what follows."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)
