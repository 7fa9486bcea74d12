/* The lower limit of a row of tests/peers/profile: the system calls of a request, and nothing else.
 *
 *   limit PORT DIR FILES BATCH RESPONSE PACE_NS [PORT_OF_ANOTHER ...]
 *
 * One epoll loop. A frame's api key chooses what follows the recv():
 *   0  Produce   pwrite() of the last BATCH bytes of the frame to one of FILES files in DIR, chosen by
 *                the connection; send() of RESPONSE bytes. With other processes, the response is sent
 *                when both have fetched the batch (acks=all). Before the pwrite() of a batch above
 *                CHECKED bytes, its checksum is computed and its records are counted.
 *   1  consume   send() of a head and sendfile() of the bytes, for each of the files
 *   2  replicate pread() of what is new in each file and one send(); waits while nothing is new
 * A process fetches from every PORT_OF_ANOTHER; it writes each batch to a file of its own.
 *
 * LIMIT_ANSWERS, an environment variable, names a folder of responses by api key ("18"), of which only the
 * correlation id is replaced: for a client that begins with ApiVersions, and sends Produce of version 8 or lower
 * with one batch in each request, of any size.
 *
 * PACE_NS: after each recv(), use this much CPU time, as a slower program would: requests that arrive
 * meanwhile share an epoll_wait(). That time is subtracted. SIGTERM ends the program, which prints
 * requests, epoll_wait() calls, seconds of CPU time in user mode, in kernel mode, for the pace, and in
 * pwrite() of checked batches.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_FDS = 1024, MAX_FILES = 64, MAX_OTHERS = 4, BUFFER = 1280 << 10, TURN = 64,
    PRODUCE = 0, CONSUME = 1, REPLICATE = 2,
    HEAD = 75,          /* bytes of a fetch response before the records of a partition */
    FETCH = 115,        /* bytes of a follower's fetch request */
    SLICE = 1 << 20,    /* max.partition.fetch.bytes */
    CHECKED = 1 << 14,  /* the checks of smaller batches are not in the limit */
    BATCH_HEAD = 61,    /* bytes of a batch before its records */
};

struct connection {
    int is_open, file;
    char *buffer;
    size_t have;
    int64_t waits_for;              /* log end that both followers must have; 0: no response waits */
    int32_t correlation;
    int follower;                   /* number of a follower, from 1; 0: a client */
    int is_parked;                  /* the follower waits for new batches */
    int64_t sent[MAX_FILES], acked[MAX_FILES];
    int leader;                     /* number of the leader that this process follows, from 1 */
    int next_file;                  /* consume: the file whose bytes are being sent; FILES: none */
    size_t unsent;                  /* consume: bytes of that file that are left; 0: the head is next */
} connections[MAX_FDS];

static int files[MAX_OTHERS + 1][MAX_FILES];       /* [0]: own; then a leader's */
static int64_t sizes[MAX_OTHERS + 1][MAX_FILES];
static int file_count, others, followers, clients, poller;
static int follower_fds[MAX_OTHERS];
static size_t batch_bytes, response_bytes;
static long pace_ns;
static unsigned long requests, turns;
static double paced_s, checked_pwrite_s;
static volatile sig_atomic_t is_over;
static char *answers[128];                         /* LIMIT_ANSWERS by api key */
static size_t answer_bytes[128];

static void end(int signal) { (void)signal; is_over = 1; }

static void fail(const char *what) { perror(what); exit(1); }

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void pace(void) {
    if (!pace_ns) return;
    double began = cpu_s(), now;
    do now = cpu_s(); while (now < began + pace_ns / 1e9);
    paced_s += now - began;
}

static void send_all(int fd, const void *data, size_t size) {
    if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size) fail("send");
}

static void answer_from(int fd, int api_key, int32_t correlation) {
    memcpy(answers[api_key] + 4, &correlation, 4);
    send_all(fd, answers[api_key], answer_bytes[api_key]);
}

static void load_answers(const char *folder) {
    for (int key = 0; key < 128; key++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%d", folder, key);
        FILE *file = fopen(name, "rb");
        if (!file) continue;
        answers[key] = malloc(BUFFER);
        answer_bytes[key] = fread(answers[key], 1, BUFFER, file);
        fclose(file);
    }
}

static void answer(int fd, size_t size, int32_t correlation) {
    static char response[BUFFER];
    uint32_t length = htonl(size - 4);
    memcpy(response, &length, 4);
    memcpy(response + 4, &correlation, 4);
    send_all(fd, response, size);
}

/* Send a follower everything that it does not have. */
static void replicate(int fd) {
    static char response[BUFFER];
    struct connection *one = &connections[fd];
    size_t size = HEAD;
    for (int file = 0; file < file_count; file++) {
        int64_t new = sizes[0][file] - one->sent[file];
        if (!new) continue;
        uint32_t head[2] = {file, new};
        memcpy(response + size, head, sizeof head);
        if (pread(files[0][file], response + size + sizeof head, new, one->sent[file]) != new) fail("pread");
        size += sizeof head + new;
        one->sent[file] += new;
    }
    one->is_parked = size == HEAD;
    if (one->is_parked) return;
    uint32_t length = htonl(size - 4);
    memcpy(response, &length, 4);
    send_all(fd, response, size);
}

#if defined __x86_64__
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC(crc, word) __builtin_ia32_crc32di(crc, word)
#elif defined __aarch64__
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC(crc, word) __builtin_aarch64_crc32cx(crc, word)
#endif

/* Read all bytes by the CPU's instruction for CRC-32C, in three streams as it has that latency. The
 * streams are not combined into the checksum, which would take a microsecond. */
CRC_TARGET static uint64_t checksum(const char *data, size_t size) {
    uint64_t crcs[3] = {0}, words[3];
    size_t third = size / 24 * 8;
    for (size_t at = 0; at < third; at += 8)
        for (int i = 0; i < 3; i++) {
            memcpy(&words[i], data + i * third + at, 8);
            crcs[i] = CRC(crcs[i], words[i]);
        }
    return crcs[0] ^ crcs[1] ^ crcs[2];
}

/* Follow the sizes of the records (varint, zigzag) to the end of the batch; return their number. */
static long walk(const unsigned char *at, const unsigned char *end) {
    long count = 0;
    for (; at < end; count++) {
        unsigned size = 0, shift = 0;
        do size |= (*at & 127) << shift, shift += 7; while (*at++ & 128 && shift < 35);
        at += size >> 1;
    }
    if (at != end) fail("records");
    return count;
}

static int int16(const char *at) { return (int16_t)((unsigned char)at[0] << 8 | (unsigned char)at[1]); }

/* The position of the only batch in a Produce request of version 3 to 8. */
static size_t batch_at(const char *frame) {
    int length = int16(frame + 12);                         /* client id */
    size_t at = 14 + (length > 0 ? length : 0);
    length = int16(frame + at);                             /* transactional id */
    at += 2 + (length > 0 ? length : 0) + 2 + 4 + 4;        /* acks, timeout, number of topics */
    return at + 2 + int16(frame + at) + 4 + 4 + 4;          /* name, partitions, index, size */
}

static void produce(int fd, const char *frame, size_t size) {
    struct connection *one = &connections[fd];
    memcpy(&one->correlation, frame + 8, 4);
    if (answers[PRODUCE]) batch_bytes = size - batch_at(frame);
    if (batch_bytes > CHECKED) {
        static volatile uint64_t checked;
        const char *batch = frame + size - batch_bytes;
        checked += checksum(batch + 21, batch_bytes - 21);
        checked += walk((const unsigned char *)batch + BATCH_HEAD, (const unsigned char *)batch + batch_bytes);
    }
    double began = batch_bytes > CHECKED ? cpu_s() : 0;
    if (pwrite(files[0][one->file], frame + size - batch_bytes, batch_bytes, sizes[0][one->file]) < 0) fail("pwrite");
    if (began) checked_pwrite_s += cpu_s() - began;
    sizes[0][one->file] += batch_bytes;
    if (!others) {
        if (answers[PRODUCE]) answer_from(fd, PRODUCE, one->correlation);
        else answer(fd, response_bytes, one->correlation);
        return;
    }
    one->waits_for = sizes[0][one->file];
    for (int i = 0; i < followers; i++)
        if (connections[follower_fds[i]].is_parked) replicate(follower_fds[i]);
}

/* A fetch: the follower has written all that was sent to it. */
static void fetched(int fd) {
    struct connection *one = &connections[fd];
    if (!one->follower) {
        follower_fds[followers++] = fd;
        one->follower = followers;
    }
    memcpy(one->acked, one->sent, sizeof one->acked);
    for (int other = 0; followers == others && other < MAX_FDS; other++) {
        struct connection *waiting = &connections[other];
        if (!waiting->waits_for) continue;
        int is_committed = 1;
        for (int i = 0; i < followers; i++)
            is_committed &= connections[follower_fds[i]].acked[waiting->file] >= waiting->waits_for;
        if (is_committed) {
            waiting->waits_for = 0;
            answer(other, response_bytes, waiting->correlation);
        }
    }
    replicate(fd);
}

static void fetch(int fd) {
    static char request[FETCH] = {0, 0, 0, FETCH - 4, 0, REPLICATE};
    send_all(fd, request, FETCH);
}

/* A leader's response: write its batches and fetch again. */
static void replicated(int fd, const char *frame, size_t size) {
    int leader = connections[fd].leader;
    for (size_t at = HEAD; at < size;) {
        uint32_t head[2];
        memcpy(head, frame + at, sizeof head);
        at += sizeof head;
        if (pwrite(files[leader][head[0]], frame + at, head[1], sizes[leader][head[0]]) < 0) fail("pwrite");
        sizes[leader][head[0]] += head[1];
        at += head[1];
    }
    fetch(fd);
}

/* Send the next SLICE of each file, as far as the socket takes it. */
static void consume(int fd) {
    static const char head[HEAD];
    struct connection *one = &connections[fd];
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    while (one->next_file < file_count) {
        if (!one->unsent) {
            send_all(fd, head, HEAD);
            one->unsent = SLICE;
        }
        off_t at = one->sent[one->next_file];
        ssize_t sent = sendfile(fd, files[0][one->next_file], &at, one->unsent);
        if (sent < 0 && errno != EAGAIN) fail("sendfile");
        if (sent < 0) {
            event.events = EPOLLOUT;
            epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event);
            return;
        }
        one->sent[one->next_file] = at;
        if (!(one->unsent -= sent)) one->next_file++;
    }
    epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event);
}

static void handle(int fd, const char *frame, size_t size) {
    struct connection *one = &connections[fd];
    if (answers[(int)frame[5]] && frame[5] != PRODUCE) {
        int32_t correlation;
        memcpy(&correlation, frame + 8, 4);
        answer_from(fd, frame[5], correlation);
    } else if (one->leader) replicated(fd, frame, size);
    else if (frame[5] == REPLICATE) fetched(fd);
    else if (requests++, frame[5] == PRODUCE) produce(fd, frame, size);
    else {
        one->next_file = 0;
        consume(fd);
    }
}

static void receive(int fd) {
    struct connection *one = &connections[fd];
    ssize_t got = recv(fd, one->buffer + one->have, BUFFER - one->have, 0);
    if (got <= 0) {
        close(fd);
        one->is_open = 0;
        return;
    }
    one->have += got;
    pace();
    size_t at = 0;
    while (one->have - at >= 4) {
        uint32_t length;
        memcpy(&length, one->buffer + at, 4);
        size_t size = 4 + ntohl(length);
        if (one->have - at < size) break;
        handle(fd, one->buffer + at, size);
        at += size;
    }
    memmove(one->buffer, one->buffer + at, one->have -= at);
}

static struct connection *add(int fd) {
    int yes = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    struct connection *one = &connections[fd];
    char *buffer = one->buffer ? one->buffer : malloc(BUFFER);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    memset(one, 0, sizeof *one);
    one->is_open = 1;
    one->buffer = buffer;
    one->next_file = file_count;
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    return one;
}

static struct sockaddr_in address(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void follow(int port, int leader) {
    struct sockaddr_in to = address(port);
    int fd;
    while (fd = socket(AF_INET, SOCK_STREAM, 0), connect(fd, (struct sockaddr *)&to, sizeof to)) {
        close(fd);
        usleep(10000);
    }
    add(fd)->leader = leader;
    fetch(fd);
}

int main(int count, char **arguments) {
    if (count < 7) {
        fprintf(stderr, "usage: limit PORT DIR FILES BATCH RESPONSE PACE_NS [PORT_OF_ANOTHER ...]\n");
        return 2;
    }
    struct sockaddr_in own = address(atoi(arguments[1]));
    file_count = atoi(arguments[3]);
    batch_bytes = atol(arguments[4]);
    response_bytes = atol(arguments[5]);
    pace_ns = atol(arguments[6]);
    others = count - 7;
    if (getenv("LIMIT_ANSWERS")) load_answers(getenv("LIMIT_ANSWERS"));
    /* The signal comes while the program waits, never between its look at is_over and the wait. */
    struct sigaction action = {.sa_handler = end};
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    sigdelset(&before, SIGTERM);
    sigaction(SIGTERM, &action, NULL);
    if (chdir(arguments[2])) fail(arguments[2]);
    for (int leader = 0; leader <= others; leader++)
        for (int file = 0; file < file_count; file++) {
            char name[32];
            snprintf(name, sizeof name, "%d-%d.log", leader, file);
            files[leader][file] = open(name, O_RDWR | O_CREAT, 0644);
            if (files[leader][file] < 0) fail(name);
            sizes[leader][file] = lseek(files[leader][file], 0, SEEK_END);
        }
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, TURN)) fail("listen");
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[TURN];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (int leader = 1; leader <= others; leader++) follow(atoi(arguments[6 + leader]), leader);
    while (!is_over) {
        int got = epoll_pwait(poller, ready, TURN, -1, &before);
        turns++;
        for (int i = 0; i < got; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) add(accept(listener, NULL, NULL))->file = clients++ % file_count;
            else if (ready[i].events & EPOLLOUT) consume(fd);
            else receive(fd);
        }
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%lu %lu %.6f %.6f %.6f %.6f\n", requests, turns, used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6,
           used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6, paced_s, checked_pwrite_s);
    return 0;
}
