"""Calls the library by ctypes, as a language without a C compiler does: one datagram over loopback."""

import ctypes
import errno
import socket
import struct
import sys

ql = ctypes.CDLL(sys.argv[1], use_errno=True)
for name in ("ql_builder_new", "ql_builder_build"):
    getattr(ql, name).restype = ctypes.c_void_p
for name in ("ql_sendto", "ql_recv"):
    getattr(ql, name).restype = ctypes.c_ssize_t
ql.ql_error.restype = ctypes.c_char_p

stack = ctypes.c_void_p(ql.ql_builder_build(ctypes.c_void_p(ql.ql_builder_new())))
assert stack, ql.ql_error()
address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(53), socket.inet_aton("127.0.0.1"))
server = ql.ql_socket(stack, socket.AF_INET, socket.SOCK_DGRAM, 0)
client = ql.ql_socket(stack, socket.AF_INET, socket.SOCK_DGRAM, 0)
assert ql.ql_bind(server, address, len(address)) == 0
assert ql.ql_sendto(client, b"query", ctypes.c_size_t(5), 0, address, len(address)) == 5
buffer = ctypes.create_string_buffer(16)
assert ql.ql_recv(server, buffer, ctypes.c_size_t(len(buffer)), 0) == 5
assert buffer.value == b"query"
assert ql.ql_recv(client, buffer, ctypes.c_size_t(len(buffer)), socket.MSG_DONTWAIT) == -1
assert ctypes.get_errno() == errno.EAGAIN
assert ql.ql_close(server) == 0 and ql.ql_close(client) == 0
ql.ql_stack_free(stack)
print("ok")
