/* The least that a memory-to-memory test over TCP does: vmsplice and splice into the socket, recv into one buffer.
 *
 *   nettest-reference -s PORT                     serves tests one after another on 127.0.0.1
 *   nettest-reference -c PORT STREAMS SECONDS     runs a test and prints {"bits_per_second": N}, as received
 *
 * The sender's pages are huge where the kernel gives them; the receiver copies every byte into memory of its own (no
 * MSG_TRUNC). Both ends use cubic. A stream is a thread and a connection. At the end of its stream the receiver reports
 * the count of bytes and the time from the first to the last.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONTENT_BYTES (1 << 20)
#define RECEIVE_BYTES (2 << 20)
#define HUGE_PAGE_BYTES (2 << 20)
#define STREAMS_MAX 64

struct result {
    uint64_t bytes;
    uint64_t nanoseconds;
};

struct stream {
    pthread_t thread;
    int socket;
    uint64_t until;
    struct result result;
};

static void check(int good, const char *call)
{
    if (!good) {
        fprintf(stderr, "nettest-reference: %s: %s\n", call, strerror(errno));
        exit(1);
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static char *aligned_memory(size_t bytes)
{
    char *memory = aligned_alloc(HUGE_PAGE_BYTES, (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
    check(memory != NULL, "aligned_alloc");
    madvise(memory, HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (char)(i * 2654435761U >> 24);
    return memory;
}

static void use_cubic(int socket)
{
    check(setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) == 0, "TCP_CONGESTION");
}

static void *receive(void *argument)
{
    struct stream *stream = argument;
    char *memory = aligned_memory(RECEIVE_BYTES);
    struct result result = {0, 0};
    uint64_t first = 0;
    for (;;) {
        ssize_t taken = recv(stream->socket, memory, RECEIVE_BYTES, 0);
        if (taken < 0 && errno == EINTR)
            continue;
        check(taken >= 0, "recv");
        if (taken == 0)
            break;
        uint64_t at = now();
        if (!first)
            first = at;
        result.bytes += taken;
        result.nanoseconds = at - first;
    }
    check(send(stream->socket, &result, sizeof(result), 0) == sizeof(result), "send");
    close(stream->socket);
    free(memory);
    free(stream);
    return NULL;
}

static void serve(int port)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    use_cubic(listener);
    check(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
    check(listen(listener, STREAMS_MAX) == 0, "listen");
    for (;;) {
        struct stream *stream = calloc(1, sizeof(*stream));
        stream->socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        check(stream->socket >= 0, "accept");
        check(pthread_create(&stream->thread, NULL, receive, stream) == 0, "pthread_create");
        pthread_detach(stream->thread);
    }
}

#include "pages.h"

static void *transmit(void *argument)
{
    struct stream *stream = argument;
    char *memory = aligned_memory(CONTENT_BYTES);
    int ends[2];
    check(pipe2(ends, O_CLOEXEC) == 0, "pipe");
    fcntl(ends[1], F_SETPIPE_SZ, CONTENT_BYTES);
    while (now() < stream->until)
        transmit_pages(stream->socket, ends, memory, CONTENT_BYTES);
    shutdown(stream->socket, SHUT_WR);
    ssize_t taken = recv(stream->socket, &stream->result, sizeof(stream->result), MSG_WAITALL);
    check(taken == sizeof(stream->result), "recv");
    return NULL;
}

static void test(int port, int streams, double seconds)
{
    struct stream all[STREAMS_MAX];
    struct sockaddr_in address = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
    for (int i = 0; i < streams; i++) {
        all[i].socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        use_cubic(all[i].socket);
        check(connect(all[i].socket, (struct sockaddr *)&address, sizeof(address)) == 0, "connect");
    }
    uint64_t until = now() + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < streams; i++) {
        all[i].until = until;
        check(pthread_create(&all[i].thread, NULL, transmit, &all[i]) == 0, "pthread_create");
    }
    uint64_t bytes = 0, longest = 1;
    for (int i = 0; i < streams; i++) {
        pthread_join(all[i].thread, NULL);
        bytes += all[i].result.bytes;
        if (all[i].result.nanoseconds > longest)
            longest = all[i].result.nanoseconds;
    }
    printf("{\"bits_per_second\": %.0f}\n", bytes * 8e9 / longest);
}

int main(int count, char **words)
{
    signal(SIGPIPE, SIG_IGN);
    if (count == 3 && !strcmp(words[1], "-s"))
        serve(atoi(words[2]));
    int streams = count == 5 && !strcmp(words[1], "-c") ? atoi(words[3]) : 0;
    if (streams < 1 || streams > STREAMS_MAX) {
        fprintf(stderr, "nettest-reference: -s PORT, or -c PORT STREAMS SECONDS with 1 to %d streams\n", STREAMS_MAX);
        return 2;
    }
    test(atoi(words[2]), streams, atof(words[4]));
    return 0;
}
