"""Mounts a folder with slow reads: each read in flight has a rate of its own, like a client of a parallel file system.

    python3 slow_files.py FOLDER MOUNTPOINT MBPS

Read-only, and one level deep. Speaks the kernel's FUSE protocol 7.31 (include/uapi/linux/fuse.h) over /dev/fuse, which needs root.
Prints "is ready" once it is mounted; ends when it is unmounted.
"""

import ctypes
import enum
import errno
import os
import stat
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

REQUEST_HEADER = struct.Struct("<IIQQIIIHH")
REPLY_HEADER = struct.Struct("<IiQ")
ROOT, FIRST_FILE = 1, 2
READS_MAX = 256
READ_BYTES_MAX = 1 << 20
INIT_ASYNC_READ, INIT_MAX_PAGES = 1 << 0, 1 << 22
OPEN_DIRECT_IO = 1
CACHE_SECONDS = 3600
MS_RDONLY = 1

folder, mountpoint, rate_mbps = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), float(sys.argv[3])
names = sorted(os.listdir(folder))
files = [os.open(os.path.join(folder, name), os.O_RDONLY) for name in names]


class Operation(enum.IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


WITHOUT_REPLY = {Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT, Operation.DESTROY}


def attributes(node):
    found = os.stat(folder) if node == ROOT else os.fstat(files[node - FIRST_FILE])
    times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
    seconds, nanoseconds = zip(*(divmod(ns, 10**9) for ns in times))
    owner = (found.st_mode, found.st_nlink, 0, 0, 0, 4096, 0)
    return struct.pack("<6Q10I", node, found.st_size, -(-found.st_size // 512), *seconds, *nanoseconds, *owner)


def lookup(name):
    if name not in names:
        raise OSError(errno.ENOENT, name)
    node = FIRST_FILE + names.index(name)
    return struct.pack("<4Q2I", node, 0, CACHE_SECONDS, CACHE_SECONDS, 0, 0) + attributes(node)


def entries(offset, room):
    found = b""
    for at in range(offset, len(names)):
        name = names[at].encode()
        entry = struct.pack("<QQII", FIRST_FILE + at, at + 1, len(name), stat.S_IFREG >> 12) + name
        entry += bytes(-len(entry) % 8)
        if len(found) + len(entry) > room:
            break
        found += entry
    return found


def read(node, offset, length):
    data = os.pread(files[node - FIRST_FILE], length, offset)
    time.sleep(len(data) * 8 / (rate_mbps * 1e6))
    return data


def reply_to(operation, node, body):
    match operation:
        case Operation.INIT:
            readahead = struct.unpack_from("<4I", body)[2]
            flags = INIT_ASYNC_READ | INIT_MAX_PAGES
            limits = (READS_MAX, READS_MAX, READ_BYTES_MAX, 1, READ_BYTES_MAX // 4096)
            return struct.pack("<4I2H2I2H8I", 7, 31, readahead, flags, *limits, *[0] * 9)
        case Operation.LOOKUP:
            return lookup(body.rstrip(b"\0").decode())
        case Operation.GETATTR:
            return struct.pack("<QII", CACHE_SECONDS, 0, 0) + attributes(node)
        case Operation.OPEN | Operation.OPENDIR:
            return struct.pack("<QII", 0, OPEN_DIRECT_IO if operation == Operation.OPEN else 0, 0)
        case Operation.READ:
            _, offset, length = struct.unpack_from("<QQI", body)
            return read(node, offset, length)
        case Operation.READDIR:
            _, offset, room = struct.unpack_from("<QQI", body)
            return entries(offset, room)
        case Operation.STATFS:
            return struct.pack("<5Q4I24x", 0, 0, 0, len(names), 0, 4096, 255, 4096, 0)
        case Operation.RELEASE | Operation.RELEASEDIR | Operation.FLUSH:
            return b""
    raise OSError(errno.ENOSYS, "not implemented")


def serve(device, operation, unique, node, body):
    try:
        error, data = 0, reply_to(operation, node, body)
    except OSError as failure:
        error, data = -(failure.errno or errno.EIO), b""
    try:
        os.write(device, REPLY_HEADER.pack(REPLY_HEADER.size + len(data), error, unique) + data)
    except OSError as failure:
        # An interrupted request no longer waits for its reply.
        if failure.errno != errno.ENOENT:
            raise


def mount(device):
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={READ_BYTES_MAX}"
    if libc.mount(b"slow", mountpoint.encode(), b"fuse", MS_RDONLY, options.encode()) != 0:
        sys.exit(f"{mountpoint}: mount: {os.strerror(ctypes.get_errno())}")


def main():
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(device)
    print("is ready", flush=True)
    with ThreadPoolExecutor(READS_MAX) as workers:
        while True:
            try:
                request = os.read(device, READ_BYTES_MAX + 4096)
            except OSError as failure:
                if failure.errno == errno.ENODEV:
                    return
                if failure.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            _, operation, unique, node, *_ = REQUEST_HEADER.unpack_from(request)
            if operation not in WITHOUT_REPLY:
                workers.submit(serve, device, operation, unique, node, request[REQUEST_HEADER.size :])


main()
