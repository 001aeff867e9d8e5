/* Writes to a file past the page cache, asynchronously, while a thread reads it through the page
 * cache; after each write has ended, a read through the cache has to find it. Ends with 0 if
 * so, 1 with a line if not, 2 if anything else fails. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 64 << 10, ROUNDS = 300 };

static int buffered;
static atomic_int over;

static void *read_on(void *nothing)
{
    static char seen[BYTES];
    while (!atomic_load(&over))
        if (pread(buffered, seen, BYTES, 0) < 0)
            exit(2);
    return nothing;
}

static void fail(const char *doing)
{
    perror(doing);
    exit(2);
}

int main(int count, char **arguments)
{
    static char seen[BYTES];
    aio_context_t context = 0;
    pthread_t reader;
    void *bytes;
    if (count != 2 || posix_memalign(&bytes, 4096, BYTES))
        exit(2);
    int direct = open(arguments[1], O_RDWR | O_CREAT | O_DIRECT, 0600);
    buffered = open(arguments[1], O_RDONLY);
    if (direct < 0 || buffered < 0)
        fail("open");
    memset(bytes, 0, BYTES);
    if (pwrite(direct, bytes, BYTES, 0) != BYTES)
        fail("write");
    if (syscall(SYS_io_setup, 1, &context))
        fail("io_setup");
    if (pthread_create(&reader, NULL, read_on, NULL))
        exit(2);
    for (int round = 1; round <= ROUNDS; round++) {
        struct iocb operation = {
            .aio_lio_opcode = IOCB_CMD_PWRITE,
            .aio_fildes = direct,
            .aio_buf = (unsigned long)bytes,
            .aio_nbytes = BYTES,
        };
        struct iocb *all[] = { &operation };
        struct io_event event;
        memset(bytes, round & 0xff, BYTES);
        if (syscall(SYS_io_submit, context, 1, all) != 1)
            fail("io_submit");
        if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1 || event.res != BYTES)
            fail("io_getevents");
        if (pread(buffered, seen, BYTES, 0) != BYTES)
            fail("read");
        if (memcmp(seen, bytes, BYTES)) {
            printf("write %d is not seen through the page cache\n", round);
            exit(1);
        }
    }
    atomic_store(&over, 1);
    pthread_join(reader, NULL);
    return 0;
}
