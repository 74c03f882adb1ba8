"""NVMe/TCP target with one disk of zeros: enough of the protocol for a host that reads.

It runs in user space, so that the lab needs no kernel module and no block device. Usage: target.py PORT
"""

import socket
import struct
import sys
import threading

BLOCK_BYTES = 512
DISK_BYTES = 1 << 40
# Largest read: 2^8 pages of 4 KiB.
READ_PAGES_LOG = 8
ZEROS = memoryview(bytes(1 << 20))

# Types of PDUs.
ICREQ, ICRESP, CAPSULE, RESPONSE, DATA = 0, 1, 4, 5, 7
# Last PDU of a read, and success without a response of its own.
DATA_LAST_AND_SUCCESS = 0b1100

# Commands, and those of fabrics.
IDENTIFY, SET_FEATURES, READ, LOG_PAGE, FABRICS = 0x06, 0x09, 0x02, 0x02, 0x7F
CONNECT, PROPERTY_GET = 0x01, 0x04
# CAP: 1,024 entries of a queue, ready within 500 ms. CSTS: ready.
CAPABILITIES = 1 << 24 | 1023
READY = 1


class Queue:
    """One queue: a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.input = connection.makefile("rb")
        self.is_admin = False

    def serve(self) -> None:
        request = self.exactly(128)
        if request[0] != ICREQ:
            return
        self.connection.sendall(bytes([ICRESP]) + request[1:])
        while True:
            header = self.exactly(8)
            total = struct.unpack_from("<I", header, 4)[0]
            if header[0] != CAPSULE or not 72 <= total <= 9000:
                return
            capsule = self.exactly(total - 8)
            self.command(capsule[:64], capsule[64:])

    def exactly(self, count: int) -> bytes:
        data = self.input.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def command(self, entry: bytes, data: bytes) -> None:
        opcode, identifier = entry[0], struct.unpack_from("<H", entry, 2)[0]
        if opcode == FABRICS and entry[4] == CONNECT:
            self.is_admin = struct.unpack_from("<H", entry, 42)[0] == 0
            self.respond(identifier, 1)
        elif opcode == FABRICS and entry[4] == PROPERTY_GET:
            self.respond(identifier, CAPABILITIES if entry[40] == 1 else READY)
        elif opcode == IDENTIFY:
            self.identify(identifier, entry[40])
        elif opcode == SET_FEATURES:
            # As many queues as a host may want.
            self.respond(identifier, 255 | 255 << 16)
        elif self.is_admin and opcode == LOG_PAGE:
            count = (struct.unpack_from("<H", entry, 42)[0] + 1) * 4
            self.send(identifier, ZEROS[:count])
        elif opcode == READ:
            count = (struct.unpack_from("<H", entry, 48)[0] + 1) * BLOCK_BYTES
            self.send(identifier, ZEROS[:count])
        else:
            self.respond(identifier, 0)

    def respond(self, identifier: int, result: int) -> None:
        header = struct.pack("<BBBBIQ4xHH", RESPONSE, 0, 24, 0, 24, result, identifier, 0)
        self.connection.sendall(header)

    def send(self, identifier: int, data: memoryview) -> None:
        flags = DATA_LAST_AND_SUCCESS
        header = struct.pack("<BBBBIH2xII4x", DATA, flags, 24, 24, 24 + len(data), identifier, 0, len(data))
        self.connection.sendall(header)
        self.connection.sendall(data)

    def identify(self, identifier: int, structure: int) -> None:
        page = bytearray(4096)
        if structure == 0:
            struct.pack_into("<Q", page, 0, DISK_BYTES // BLOCK_BYTES)
            page[130] = BLOCK_BYTES.bit_length() - 1
        elif structure == 1:
            page[77] = READ_PAGES_LOG
        else:
            page[0] = 1
        self.send(identifier, memoryview(page))


def serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        Queue(connection).serve()
    except (EOFError, OSError):
        pass
    finally:
        connection.close()


def main() -> None:
    listener = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
    print("the target is ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
