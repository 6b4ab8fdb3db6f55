"""The worker's end of the socket pair: whole messages, and sends that never wait."""

import socket

from .ipc import Message, decode, encode

PACKET_BYTES = 1 << 18


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep packets whole and tell each end when the other has gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """Blocking receive for one thread, non-blocking send for any."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def send(self, message: Message) -> bool:
        """Send unless that would wait; False when the peer has gone or reads too slowly."""
        try:
            self._socket.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> Message | None:
        """The next message; None once the peer has gone."""
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except ConnectionResetError:
            return None
        return decode(packet) if packet else None

    def close(self) -> None:
        """Close this end; the peer sees that."""
        self._socket.close()
