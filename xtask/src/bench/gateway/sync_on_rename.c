// rename(2) that makes a file durable under its new name: syncs the file before, and its directory afterwards.
// Preloaded into a server that renames uploaded files, it gives that server the durability of our gateway.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static int sync_path(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fsync(fd);
    close(fd);
    return result;
}

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    char directory[PATH_MAX];
    if (!next || sync_path(from) != 0 || next(from, to) != 0)
        return -1;
    snprintf(directory, sizeof directory, "%s", to);
    return sync_path(dirname(directory));
}
