/* The least that a receiver of many files does: it creates and writes them under temporary names, syncs them in groups,
 * and gives them their names, in one thread.
 *
 *   files FOLDER COUNT BYTES [SOURCE]
 *
 * Content comes from memory, or from the files of the same names in SOURCE, which 8 threads read ahead. A group is what
 * was written within 250 ms, as in the committer of the mover: its data is durable before the first of its files has its
 * name. A last sync makes all names durable. 1,000 files go to a folder.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER_FILES 1000
#define GROUP_NANOSECONDS 250000000ULL
#define NAME_BYTES 32
#define READERS 8
/* Files that the readers are ahead at most. */
#define BUFFERS 256
/* Written files after which readers that wait for room are woken. */
#define WOKEN_FILES 32

static void check(int good, const char *call)
{
    if (!good) {
        fprintf(stderr, "files: %s: %s\n", call, strerror(errno));
        exit(1);
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int *folders;

static void temporary_name(char *name, long number)
{
    snprintf(name, NAME_BYTES, ".f%06ld.part", number);
}

static void create(long number, const char *content, size_t bytes)
{
    char name[NAME_BYTES];
    temporary_name(name, number);
    int file = openat(folders[number / FOLDER_FILES], name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    check(file >= 0, "openat");
    check(write(file, content, bytes) == (ssize_t)bytes, "write");
    /* Mode and time of the source. */
    struct timespec times[2] = {{0, UTIME_OMIT}, {1700000000, 0}};
    check(fchmod(file, 0644) == 0, "fchmod");
    check(futimens(file, times) == 0, "futimens");
    close(file);
}

/* Files read ahead: file n is in buffer n % BUFFERS once `ready` there is n + 1, until `used` files are written. The lock
 * is taken only to wait and to wake a thread that waits. */
static struct {
    const char *folder;
    long count;
    size_t bytes;
    char *content[BUFFERS];
    atomic_long ready[BUFFERS];
    atomic_long used;
    atomic_int waiting_readers, writer_waits;
    pthread_mutex_t lock;
    pthread_cond_t room, content_came;
} source = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .room = PTHREAD_COND_INITIALIZER,
    .content_came = PTHREAD_COND_INITIALIZER,
};

static void wait_for_room(long number)
{
    pthread_mutex_lock(&source.lock);
    source.waiting_readers++;
    while (number >= source.used + BUFFERS)
        pthread_cond_wait(&source.room, &source.lock);
    source.waiting_readers--;
    pthread_mutex_unlock(&source.lock);
}

static void wait_for_content(long number)
{
    pthread_mutex_lock(&source.lock);
    source.writer_waits = 1;
    while (source.ready[number % BUFFERS] != number + 1)
        pthread_cond_wait(&source.content_came, &source.lock);
    source.writer_waits = 0;
    pthread_mutex_unlock(&source.lock);
}

static void wake(pthread_cond_t *condition)
{
    pthread_mutex_lock(&source.lock);
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(&source.lock);
}

static void *read_ahead(void *first)
{
    for (long number = (long)(intptr_t)first; number < source.count; number += READERS) {
        char path[4096];
        if (number >= source.used + BUFFERS)
            wait_for_room(number);
        snprintf(path, sizeof(path), "%s/d%03ld/f%06ld.dat", source.folder, number / FOLDER_FILES, number);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        check(file >= 0, path);
        check(read(file, source.content[number % BUFFERS], source.bytes) == (ssize_t)source.bytes, "read");
        close(file);
        source.ready[number % BUFFERS] = number + 1;
        if (source.writer_waits)
            wake(&source.content_came);
    }
    return NULL;
}

static void start_readers(const char *folder, long count, size_t bytes)
{
    source.folder = folder;
    source.count = count;
    source.bytes = bytes;
    for (int i = 0; i < BUFFERS; i++)
        source.content[i] = malloc(bytes + 1);
    for (long reader = 0; reader < READERS; reader++) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, read_ahead, (void *)(intptr_t)reader) == 0, "pthread_create");
    }
}

static void create_from_source(long number)
{
    if (source.ready[number % BUFFERS] != number + 1)
        wait_for_content(number);
    create(number, source.content[number % BUFFERS], source.bytes);
    source.used = number + 1;
    /* The others are ahead: a wake-up for each file would cost more than the file. */
    if ((number + 1) % WOKEN_FILES == 0 && source.waiting_readers > 0)
        wake(&source.room);
}

/* Makes the files before `end` durable and gives them their names. */
static void commit(int root, long from, long end)
{
    check(syncfs(root) == 0, "syncfs");
    for (long number = from; number < end; number++) {
        char before[NAME_BYTES], after[NAME_BYTES];
        int folder = folders[number / FOLDER_FILES];
        temporary_name(before, number);
        snprintf(after, sizeof(after), "f%06ld.dat", number);
        check(renameat2(folder, before, folder, after, 0) == 0, "renameat2");
    }
}

int main(int words, char **word)
{
    int has_words = words == 4 || words == 5;
    long count = has_words ? atol(word[2]) : 0;
    long bytes = has_words ? atol(word[3]) : -1;
    if (count < 1 || count > 10000000 || bytes < 0 || bytes > 1 << 30) {
        fprintf(stderr, "files: FOLDER COUNT BYTES [SOURCE]\n");
        return 2;
    }
    int root = open(word[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(root >= 0, word[1]);
    char *content = aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
    for (long i = 0; i < bytes; i++)
        content[i] = (char)(i * 2654435761U >> 24);
    if (words == 5)
        start_readers(word[4], count, bytes);
    folders = calloc((count + FOLDER_FILES - 1) / FOLDER_FILES, sizeof(*folders));
    long committed = 0;
    uint64_t group = now();
    for (long number = 0; number < count; number++) {
        if (number % FOLDER_FILES == 0) {
            char name[NAME_BYTES];
            snprintf(name, sizeof(name), "d%03ld", number / FOLDER_FILES);
            check(mkdirat(root, name, 0755) == 0, "mkdirat");
            folders[number / FOLDER_FILES] = openat(root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        if (words == 5)
            create_from_source(number);
        else
            create(number, content, bytes);
        if (now() - group >= GROUP_NANOSECONDS) {
            commit(root, committed, number + 1);
            committed = number + 1;
            group = now();
        }
    }
    commit(root, committed, count);
    check(syncfs(root) == 0, "syncfs");
    return 0;
}
