/* The lower limit of a move of a partition between brokers: the copies, and nothing else.
 *
 *   move_limit DIR MEGABYTES MEGABYTES_PER_RESPONSE [MEGABYTES_PER_S]
 *
 * A leader has a file in the page cache. A follower sends a request of FETCH bytes, receives a head and
 * the next bytes of the file, which the leader sends with sendfile(), reads them as a checksum does,
 * and writes them to a new file with pwrite(), a megabyte at a time. Prints the seconds of CPU time per
 * gigabyte (10^9 bytes) of the leader and of the follower, and megabytes a second.
 *
 * With a rate the follower waits before each request, as under a throttle.
 *
 * The follower writes to memory that the page cache takes from the free memory. In a virtual machine
 * whose host takes back free memory, the first write to a page costs ten times as much: the write is
 * therefore measured twice, the second time to memory of the first file, which was just removed.
 *
 *   cc -O2 -msse4.2 -o move_limit move_limit.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>

enum { MEGABYTE = 1 << 20, HEAD = 75, FETCH = 115 };

static void fail(const char *what) { perror(what); exit(1); }

static void receive(int fd, char *to, size_t size) {
    while (size) {
        ssize_t got = recv(fd, to, size, 0);
        if (got <= 0) fail("recv");
        to += got;
        size -= got;
    }
}

/* Three streams, as a fast crc32c has them. */
static uint64_t read_all(const char *data) {
    uint64_t a = 0, b = 0, c = 0;
    const uint64_t *at = (const uint64_t *)data;
    size_t third = MEGABYTE / 24;
    for (size_t i = 0; i < third; i++) {
        a = __builtin_ia32_crc32di(a, at[i]);
        b = __builtin_ia32_crc32di(b, at[i + third]);
        c = __builtin_ia32_crc32di(c, at[i + 2 * third]);
    }
    return a ^ b ^ c;
}

static void lead(int fd, int file, long megabytes, long per_response) {
    char buffer[FETCH] = {0};
    off_t at = 0;
    for (long left = megabytes; left > 0; left -= per_response) {
        receive(fd, buffer, FETCH);
        if (send(fd, buffer, HEAD, MSG_MORE) != HEAD) fail("send");
        off_t end = at + (off_t)(left < per_response ? left : per_response) * MEGABYTE;
        while (at < end) {
            size_t size = end - at < MEGABYTE ? end - at : MEGABYTE;
            if (sendfile(fd, file, &at, size) <= 0) fail("sendfile");
        }
    }
}

static volatile uint64_t checksum;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void wait_until(double at) {
    double left = at - now();
    if (left <= 0) return;
    struct timespec time = {.tv_sec = (time_t)left, .tv_nsec = (left - (time_t)left) * 1e9};
    nanosleep(&time, NULL);
}

static void follow(int fd, int file, long megabytes, long per_response, double rate) {
    char request[FETCH] = {0};
    char *buffer = malloc(per_response * MEGABYTE + HEAD);
    off_t at = 0;
    double began = now();
    for (long left = megabytes; left > 0; left -= per_response) {
        if (rate > 0) wait_until(began + (megabytes - left) / rate);
        long count = left < per_response ? left : per_response;
        if (send(fd, request, FETCH, 0) != FETCH) fail("send");
        receive(fd, buffer, HEAD + count * MEGABYTE);
        for (long i = 0; i < count; i++, at += MEGABYTE) {
            const char *piece = buffer + HEAD + i * MEGABYTE;
            checksum += read_all(piece);
            if (pwrite(file, piece, MEGABYTE, at) != MEGABYTE) fail("pwrite");
        }
    }
    free(buffer);
}

static double cpu_of(int who) {
    struct rusage used;
    getrusage(who, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **arguments) {
    if (count != 4 && count != 5) {
        fprintf(stderr, "usage: move_limit DIR MEGABYTES MEGABYTES_PER_RESPONSE [MEGABYTES_PER_S]\n");
        return 2;
    }
    if (chdir(arguments[1])) fail(arguments[1]);
    long megabytes = atol(arguments[2]), per_response = atol(arguments[3]);
    double rate = count == 5 ? atof(arguments[4]) : 0;
    double gigabytes = megabytes * (double)MEGABYTE / 1e9;
    int yes = 1, source = open("source", O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *piece = malloc(MEGABYTE);
    for (long i = 0; i < MEGABYTE; i++) piece[i] = i;
    for (long i = 0; i < megabytes; i++)
        if (pwrite(source, piece, MEGABYTE, i * MEGABYTE) != MEGABYTE) fail("pwrite");
    for (int round = 0; round < 2; round++) {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof own;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&own, size) || listen(listener, 1)) fail("listen");
        getsockname(listener, (struct sockaddr *)&own, &size);
        double leader_before = cpu_of(RUSAGE_CHILDREN);
        pid_t leader = fork();
        if (!leader) {
            int fd = accept(listener, NULL, NULL);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            lead(fd, source, megabytes, per_response);
            _exit(0);
        }
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&own, sizeof own)) fail("connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        int target = open("target", O_RDWR | O_CREAT | O_TRUNC, 0644);
        double before = cpu_of(RUSAGE_SELF), began = now();
        follow(fd, target, megabytes, per_response, rate);
        double used = cpu_of(RUSAGE_SELF) - before, took = now() - began;
        waitpid(leader, NULL, 0);
        printf("%s memory: leader %.2f, follower %.2f, together %.2f s of CPU time per GB; %.0f MB/s\n",
               round ? "used" : "free", (cpu_of(RUSAGE_CHILDREN) - leader_before) / gigabytes, used / gigabytes,
               (cpu_of(RUSAGE_CHILDREN) - leader_before + used) / gigabytes, gigabytes * 1e3 / took);
        fflush(stdout);
        close(fd);
        close(listener);
        close(target);
        unlink("target");
    }
    unlink("source");
    return 0;
}
