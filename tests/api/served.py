"""What listens on a port in the tests of the proxy: a server that answers as its paths say. Run it with a file's path.

It writes its port there. Every request has a connection of its own.
"""

import os
import socket
import sys
import threading
from pathlib import Path

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Request

GO = threading.Event()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(peer: socket.socket) -> None:
    """Answer one request."""
    with peer, peer.makefile("rb") as file:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := file.readline()):
                return
            head += line
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
        }
        path = head.split(b" ")[1].partition(b"?")[0]
        length = int(fields.get(b"content-length", 0))
        if path == b"/raw":  # the body is the answer, byte for byte
            peer.sendall(file.read(length))
        elif path == b"/never":
            file.read()
        elif path == b"/echo":  # a piece back for each that comes
            peer.sendall(CHUNKED)
            while size := int(file.readline(), 16):
                peer.sendall(b"%x\r\n%b\r\n" % (size, file.read(size)))
                file.readline()
            peer.sendall(b"0\r\n\r\n")
        elif path == b"/events":  # the second when GET /go has been asked for
            peer.sendall(CHUNKED + b"9\r\ndata: 1\n\n\r\n")
            GO.wait()
            peer.sendall(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
        elif path == b"/endless":
            piece = b"10000\r\n" + bytes(65536) + b"\r\n"
            peer.sendall(CHUNKED)
            sent = 0
            try:
                while True:
                    peer.sendall(piece)
                    sent += 65536
                    Path(sys.argv[1] + ".sent").write_text(str(sent))
            except OSError:
                Path(sys.argv[1] + ".ended").touch()
        elif path == b"/sink":
            left = length
            while left and (piece := file.read1(min(left, 65536))):
                left -= len(piece)
            body = b"%d" % (length - left)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        elif path == b"/big":
            size = int(head.split(b" ")[1].partition(b"?")[2])
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // 65536):
                peer.sendall(bytes(65536))
            peer.sendall(bytes(size % 65536))
        elif path == b"/ws":
            serve_websocket(peer, head)
        else:  # shows what has come
            if path == b"/go":
                GO.set()
            head += file.read(length)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


def serve_websocket(peer: socket.socket, head: bytes) -> None:
    """Send back each message; the first is the head of the request."""
    connection = WSConnection(ConnectionType.SERVER)
    connection.receive_data(head)
    while True:
        for event in connection.events():
            if isinstance(event, Request):
                chosen = event.subprotocols[0] if event.subprotocols else None
                peer.sendall(connection.send(AcceptConnection(subprotocol=chosen)))
                peer.sendall(connection.send(BytesMessage(head)))
            elif isinstance(event, Message):
                peer.sendall(connection.send(event))
            elif isinstance(event, CloseConnection):
                peer.sendall(connection.send(event.response()))
                return
        data = peer.recv(65536)
        connection.receive_data(data or None)


def main() -> None:
    """Serve until killed: on 127.0.0.1, or on the address that is given."""
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    temporary = f"{sys.argv[1]}.new"
    Path(temporary).write_text(str(listener.getsockname()[1]))
    os.replace(temporary, sys.argv[1])
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=answer, args=(peer,), daemon=True).start()


if __name__ == "__main__":
    main()
