/* Writes to a file past the page cache, asynchronously, while a thread reads it through the page
 * cache; after each write has ended, a read through the cache has to find it. The second argument
 * is the interface: `aio` or `io_uring`. Ends with 0 if so, 1 with a line if not, 2 if anything
 * else fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* Linux AIO. */
static aio_context_t context;

static void aio_begin(void)
{
    if (syscall(SYS_io_setup, 1, &context))
        fail("io_setup");
}

static void aio_write(int direct, void *bytes)
{
    struct iocb operation = {
        .aio_lio_opcode = IOCB_CMD_PWRITE,
        .aio_fildes = direct,
        .aio_buf = (unsigned long)bytes,
        .aio_nbytes = BYTES,
    };
    struct iocb *all[] = { &operation };
    struct io_event event;
    if (syscall(SYS_io_submit, context, 1, all) != 1)
        fail("io_submit");
    if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1 || event.res != BYTES)
        fail("io_getevents");
}

/* io_uring: two rings in memory that is shared with the kernel. */
static int ring;
static struct io_uring_params params;
static char *submissions, *completions;
static struct io_uring_sqe *entries;

static void *map_ring(size_t bytes, off_t what)
{
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);
    if (place == MAP_FAILED)
        fail("mmap of a ring");
    return place;
}

static unsigned *number(char *of, unsigned offset)
{
    return (unsigned *)(of + offset);
}

static void io_uring_begin(void)
{
    ring = syscall(SYS_io_uring_setup, 1, &params);
    if (ring < 0)
        fail("io_uring_setup");
    submissions = map_ring(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                           IORING_OFF_SQ_RING);
    completions = map_ring(params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
                           IORING_OFF_CQ_RING);
    entries = map_ring(params.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
}

static void io_uring_write(int direct, void *bytes)
{
    unsigned *tail = number(submissions, params.sq_off.tail);
    unsigned *head = number(completions, params.cq_off.head);
    unsigned at = *tail & *number(submissions, params.sq_off.ring_mask);
    struct io_uring_cqe *ended = (struct io_uring_cqe *)(completions + params.cq_off.cqes);
    entries[at] = (struct io_uring_sqe) {
        .opcode = IORING_OP_WRITE,
        .fd = direct,
        .addr = (unsigned long)bytes,
        .len = BYTES,
    };
    number(submissions, params.sq_off.array)[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        fail("io_uring_enter");
    if (*head == __atomic_load_n(number(completions, params.cq_off.tail), __ATOMIC_ACQUIRE)) {
        fprintf(stderr, "io_uring_enter: no write has ended\n");
        exit(2);
    }
    ended += *head & *number(completions, params.cq_off.ring_mask);
    if (ended->res != BYTES) {
        errno = ended->res < 0 ? -ended->res : EIO;
        fail("a write through io_uring");
    }
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

int main(int count, char **arguments)
{
    static char seen[BYTES];
    pthread_t reader;
    void *bytes;
    if (count != 3 || posix_memalign(&bytes, 4096, BYTES))
        exit(2);
    int with_rings = !strcmp(arguments[2], "io_uring");
    if (!with_rings && strcmp(arguments[2], "aio"))
        exit(2);
    int direct = open(arguments[1], O_RDWR | O_CREAT | O_DIRECT, 0600);
    buffered = open(arguments[1], O_RDONLY);
    if (direct < 0 || buffered < 0)
        fail("open");
    memset(bytes, 0, BYTES);
    if (pwrite(direct, bytes, BYTES, 0) != BYTES)
        fail("write");
    (with_rings ? io_uring_begin : aio_begin)();
    if (pthread_create(&reader, NULL, read_on, NULL))
        exit(2);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(bytes, round & 0xff, BYTES);
        (with_rings ? io_uring_write : aio_write)(direct, bytes);
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
