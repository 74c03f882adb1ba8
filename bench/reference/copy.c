/* The least that a copy of one file over TCP does: direct reads, vmsplice and splice into the socket, recv, and direct
 * writes, without a checksum or a protocol. One process is both ends, so that its processor time is that of both.
 *
 *   copy SOURCE DESTINATION STREAMS
 *
 * A stream is a connection over loopback with cubic and a thread at each end; stream s carries blocks s, s + STREAMS and
 * so on. The kernel reads the pages of a block until the receiver has taken them, so a buffer is used again only after
 * the receiver's byte for its block. The end is a sync of the destination.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES (4L << 20)
#define PIPE_BYTES (1L << 20)
#define DIRECT_BYTES 4096
/* Blocks of a stream that are read or on their way. */
#define BUFFERS 3
#define STREAMS_MAX 64

struct stream {
    pthread_t sender, receiver;
    long number;
    int send_socket, receive_socket;
};

static int source, destination;
static long file_bytes, streams;

static void check(int good, const char *call)
{
    if (!good) {
        fprintf(stderr, "copy: %s: %s\n", call, strerror(errno));
        exit(1);
    }
}

static char *block_memory(void)
{
    char *memory = aligned_alloc(2 << 20, BLOCK_BYTES);
    check(memory != NULL, "aligned_alloc");
    madvise(memory, BLOCK_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, BLOCK_BYTES);
    return memory;
}

static long block_bytes(long offset)
{
    return file_bytes - offset < BLOCK_BYTES ? file_bytes - offset : BLOCK_BYTES;
}

#include "pages.h"

static void *transmit(void *argument)
{
    struct stream *stream = argument;
    char *buffers[BUFFERS], taken;
    int ends[2];
    for (int i = 0; i < BUFFERS; i++)
        buffers[i] = block_memory();
    check(pipe2(ends, O_CLOEXEC) == 0, "pipe");
    fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES);
    long sent = 0;
    for (long offset = stream->number * BLOCK_BYTES; offset < file_bytes; offset += streams * BLOCK_BYTES, sent++) {
        if (sent >= BUFFERS)
            check(recv(stream->send_socket, &taken, 1, MSG_WAITALL) == 1, "recv");
        char *memory = buffers[sent % BUFFERS];
        long bytes = block_bytes(offset);
        check(pread(source, memory, bytes, offset) == bytes, "pread");
        transmit_pages(stream->send_socket, ends, memory, bytes);
    }
    for (long left = sent < BUFFERS ? sent : BUFFERS; left > 0; left--)
        check(recv(stream->send_socket, &taken, 1, MSG_WAITALL) == 1, "recv");
    return NULL;
}

static void *receive(void *argument)
{
    struct stream *stream = argument;
    char *memory = block_memory();
    for (long offset = stream->number * BLOCK_BYTES; offset < file_bytes; offset += streams * BLOCK_BYTES) {
        long bytes = block_bytes(offset);
        check(recv(stream->receive_socket, memory, bytes, MSG_WAITALL) == bytes, "recv");
        check(send(stream->receive_socket, "", 1, 0) == 1, "send");
        check(pwrite(destination, memory, bytes, offset) == bytes, "pwrite");
    }
    return NULL;
}

static void connect_streams(struct stream *all)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
    socklen_t length = sizeof(address);
    check(setsockopt(listener, SOL_TCP, TCP_CONGESTION, "cubic", 5) == 0, "TCP_CONGESTION");
    check(bind(listener, (struct sockaddr *)&address, length) == 0, "bind");
    check(listen(listener, STREAMS_MAX) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    for (long i = 0; i < streams; i++) {
        int on = 1;
        all[i].number = i;
        all[i].send_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(setsockopt(all[i].send_socket, SOL_TCP, TCP_CONGESTION, "cubic", 5) == 0, "TCP_CONGESTION");
        check(connect(all[i].send_socket, (struct sockaddr *)&address, length) == 0, "connect");
        all[i].receive_socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        check(all[i].receive_socket >= 0, "accept");
        setsockopt(all[i].receive_socket, SOL_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    close(listener);
}

int main(int words, char **word)
{
    streams = words == 4 ? atol(word[3]) : 0;
    if (streams < 1 || streams > STREAMS_MAX) {
        fprintf(stderr, "copy: SOURCE DESTINATION STREAMS, with 1 to %d streams\n", STREAMS_MAX);
        return 2;
    }
    struct stat facts;
    source = open(word[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
    check(source >= 0 && fstat(source, &facts) == 0, word[1]);
    file_bytes = facts.st_size;
    if (file_bytes == 0 || file_bytes % DIRECT_BYTES != 0) {
        fprintf(stderr, "copy: %s: not a multiple of %d bytes, as direct reads and writes need\n", word[1], DIRECT_BYTES);
        return 2;
    }
    destination = open(word[2], O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
    check(destination >= 0 && fallocate(destination, 0, 0, file_bytes) == 0, word[2]);
    struct stream all[STREAMS_MAX];
    connect_streams(all);
    for (long i = 0; i < streams; i++) {
        check(pthread_create(&all[i].sender, NULL, transmit, &all[i]) == 0, "pthread_create");
        check(pthread_create(&all[i].receiver, NULL, receive, &all[i]) == 0, "pthread_create");
    }
    for (long i = 0; i < streams; i++) {
        pthread_join(all[i].sender, NULL);
        pthread_join(all[i].receiver, NULL);
    }
    check(fsync(destination) == 0, "fsync");
    return 0;
}
