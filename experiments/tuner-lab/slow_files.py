"""Mounts a folder with slow files: each read and each write has a rate of its own, like a client of a parallel file system.

    python3 slow_files.py FOLDER MOUNTPOINT MBPS

One level deep. Speaks the kernel's FUSE protocol 7.38 (include/uapi/linux/fuse.h) over /dev/fuse, which needs root.
Prints "is ready" once it is mounted; ends when it is unmounted.
"""

import ctypes
import enum
import errno
import itertools
import os
import stat
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

REQUEST_HEADER = struct.Struct("<IIQQIIIHH")
REPLY_HEADER = struct.Struct("<IiQ")
WRITE_REQUEST = struct.Struct("<QQ2IQ2I")
ROOT = 1
REQUESTS_MAX = 256
DATA_BYTES_MAX = 1 << 20
INIT_ASYNC_READ, INIT_BIG_WRITES, INIT_MAX_PAGES = 1 << 0, 1 << 5, 1 << 22
OPEN_DIRECT_IO, OPEN_PARALLEL_DIRECT_WRITES = 1 << 0, 1 << 6
SET_MODE, SET_SIZE, SET_MTIME = 1 << 0, 1 << 3, 1 << 5
CACHE_SECONDS = 3600

folder, mountpoint, rate_mbps = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), float(sys.argv[3])
root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
# Descriptors by the number of the node, and numbers by name.
files, names = {ROOT: root}, {}
numbers = itertools.count(ROOT + 1)


class Operation(enum.IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    UNLINK = 10
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


WITHOUT_REPLY = {Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT, Operation.DESTROY}


def add(name, flags=0, mode=0):
    file = os.open(name, os.O_RDWR | flags, mode, dir_fd=root)
    names[name] = next(numbers)
    files[names[name]] = file


def attributes(node):
    found = os.fstat(files[node])
    times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
    seconds, nanoseconds = zip(*(divmod(ns, 10**9) for ns in times))
    owner = (found.st_mode, found.st_nlink, 0, 0, 0, 4096, 0)
    return struct.pack("<6Q10I", node, found.st_size, -(-found.st_size // 512), *seconds, *nanoseconds, *owner)


def lookup(name):
    if name not in names:
        raise OSError(errno.ENOENT, name)
    node = names[name]
    return struct.pack("<4Q2I", node, 0, CACHE_SECONDS, CACHE_SECONDS, 0, 0) + attributes(node)


def entries(offset, room):
    found = b""
    for at, (text, node) in enumerate(list(names.items())[offset:], offset):
        name = text.encode()
        entry = struct.pack("<QQII", node, at + 1, len(name), stat.S_IFREG >> 12) + name
        entry += bytes(-len(entry) % 8)
        if len(found) + len(entry) > room:
            break
        found += entry
    return found


def take_time(count):
    time.sleep(count * 8 / (rate_mbps * 1e6))


def read(node, offset, length):
    data = os.pread(files[node], length, offset)
    take_time(len(data))
    return data


def write(node, body):
    _, offset, length, *_ = WRITE_REQUEST.unpack_from(body)
    written = os.pwrite(files[node], memoryview(body)[WRITE_REQUEST.size :][:length], offset)
    take_time(written)
    return struct.pack("<II", written, 0)


def set_attributes(node, body):
    valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode = struct.unpack_from("<2I6Q4I", body)
    if valid & SET_MODE:
        os.fchmod(files[node], stat.S_IMODE(mode))
    if valid & SET_SIZE:
        os.ftruncate(files[node], size)
    if valid & SET_MTIME:
        os.utime(files[node], ns=(mtime * 10**9 + mtime_ns,) * 2)
    return struct.pack("<QII", CACHE_SECONDS, 0, 0) + attributes(node)


def create(body):
    flags, mode = struct.unpack_from("<2I", body)
    name = text_of(body[16:])
    add(name, flags & os.O_EXCL | os.O_CREAT, mode)
    return lookup(name) + struct.pack("<Q2I", 0, OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES, 0)


def rename(names_of_both):
    old, new = map(text_of, names_of_both.rstrip(b"\0").split(b"\0"))
    os.rename(old, new, src_dir_fd=root, dst_dir_fd=root)
    names[new] = names.pop(old)
    return b""


def text_of(name):
    return name.rstrip(b"\0").decode()


def reply_to(operation, node, body):
    match operation:
        case Operation.INIT:
            readahead = struct.unpack_from("<4I", body)[2]
            flags = INIT_ASYNC_READ | INIT_BIG_WRITES | INIT_MAX_PAGES
            limits = (REQUESTS_MAX, REQUESTS_MAX, DATA_BYTES_MAX, 1, DATA_BYTES_MAX // 4096)
            return struct.pack("<4I2H2I2H8I", 7, 38, readahead, flags, *limits, *[0] * 9)
        case Operation.LOOKUP:
            return lookup(text_of(body))
        case Operation.GETATTR:
            return struct.pack("<QII", CACHE_SECONDS, 0, 0) + attributes(node)
        case Operation.SETATTR:
            return set_attributes(node, body)
        case Operation.OPENDIR:
            return bytes(16)
        case Operation.OPEN:
            return struct.pack("<QII", 0, OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES, 0)
        case Operation.CREATE:
            return create(body)
        case Operation.UNLINK:
            os.unlink(text_of(body), dir_fd=root)
            del names[text_of(body)]
            return b""
        case Operation.RENAME:
            return rename(body[8:])
        case Operation.RENAME2:
            if struct.unpack_from("<QI", body)[1] != 0:
                raise OSError(errno.EINVAL, "a rename without flags alone")
            return rename(body[16:])
        case Operation.FALLOCATE:
            _, offset, length, mode = struct.unpack_from("<3QI", body)
            if mode != 0:
                raise OSError(errno.EOPNOTSUPP, "space alone")
            os.posix_fallocate(files[node], offset, length)
            return b""
        case Operation.WRITE:
            return write(node, body)
        case Operation.READ:
            _, offset, length = struct.unpack_from("<QQI", body)
            return read(node, offset, length)
        case Operation.READDIR:
            _, offset, room = struct.unpack_from("<QQI", body)
            return entries(offset, room)
        case Operation.STATFS:
            found = os.fstatvfs(root)
            room = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
            return struct.pack("<5Q4I24x", *room, found.f_bsize, found.f_namemax, found.f_frsize, 0)
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
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={DATA_BYTES_MAX}"
    if libc.mount(b"slow", mountpoint.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"{mountpoint}: mount: {os.strerror(ctypes.get_errno())}")


def main():
    for name in sorted(os.listdir(folder)):
        add(name)
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(device)
    print("is ready", flush=True)
    with ThreadPoolExecutor(REQUESTS_MAX) as workers:
        while True:
            try:
                request = os.read(device, DATA_BYTES_MAX + 4096)
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
