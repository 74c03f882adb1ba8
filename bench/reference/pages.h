/* Sends of memory as pages: vmsplice into a pipe, splice from there into a socket. The includer defines check. */
#include <fcntl.h>
#include <sys/uio.h>

static void transmit_pages(int into, const int *ends, char *memory, size_t bytes)
{
    struct iovec content = {memory, bytes};
    while (content.iov_len > 0) {
        ssize_t left = vmsplice(ends[1], &content, 1, 0);
        check(left > 0, "vmsplice");
        content.iov_base = (char *)content.iov_base + left;
        content.iov_len -= left;
        while (left > 0) {
            ssize_t sent = splice(ends[0], NULL, into, NULL, left, 0);
            check(sent > 0, "splice");
            left -= sent;
        }
    }
}
