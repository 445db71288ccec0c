/* A streaming endpoint that keeps its own books, for benchmarks beyond what a Python server can pace.
 *
 * One thread, one epoll. POST .../completions?ttft_ms=200&jitter_ms=200&chunk_ms=20&bulk=0 with "max_tokens" in the body
 * streams that many one-letter tokens. Token k is due at: request read + ttft + U(0, jitter) + k * chunk. In bulk the
 * whole reply is one write. GET /truth tells what was sent, DELETE /truth forgets it. Prints its URL when it listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { INPUT = 1 << 20, FDS = 1 << 16, EVENTS = 512, TOKENS_MOST = 1 << 16 };

typedef struct { char *at; size_t used, room; } Text;

typedef struct {
    int fd, tokens, sent, bulk, heap;    /* heap: place in the queue, -1 outside of it */
    int64_t asked, first, due, pace;     /* ns */
    Text in, out;
    size_t written;
    int waiting;                         /* for room in the socket */
} Stream;

typedef struct { double *at; size_t used, room; } Samples;

static Stream *streams[FDS], *queue[FDS];
static int queued, poller;
static Samples ttft, tpot, late;
static int64_t received, completed, cut, peak;
static double cpu_from;
static char token[26][512];
static size_t token_size[26];

static const char HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
#define ID "chatcmpl-00000000000000000000000000000000"
#define EVENT "\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"truth\",\"choices\":"

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void *grown(void *at, size_t bytes) {
    if (!(at = realloc(at, bytes))) { perror("memory"); exit(1); }
    return at;
}

static void add(Text *t, const char *what, size_t size) {
    if (t->used + size > t->room) t->at = grown(t->at, t->room = 2 * (t->used + size));
    memcpy(t->at + t->used, what, size);
    t->used += size;
}

static void note(Samples *s, double ms) {
    if (s->used == s->room) s->at = grown(s->at, (s->room = s->room ? 2 * s->room : 4096) * sizeof(double));
    s->at[s->used++] = ms;
}

static size_t as_chunk(char *to, const char *data) { return sprintf(to, "%zx\r\n%s\r\n", strlen(data), data); }

/* -- the queue: a binary heap by due time ------------------------------------------------------------------------- */

static void put(int place, Stream *s) { queue[place] = s; s->heap = place; }

static void settle(Stream *s, int place) {
    for (int up; place && queue[up = (place - 1) / 2]->due > s->due; place = up) put(place, queue[up]);
    for (int down; (down = 2 * place + 1) < queued; place = down) {
        if (down + 1 < queued && queue[down + 1]->due < queue[down]->due) down++;
        if (queue[down]->due >= s->due) break;
        put(place, queue[down]);
    }
    put(place, s);
}

static void enqueue(Stream *s) { settle(s, queued++); if (queued > peak) peak = queued; }

static void dequeue(Stream *s) {
    int place = s->heap;
    Stream *last = queue[--queued];
    s->heap = -1;
    if (last != s) settle(last, place);
}

/* -- writing -------------------------------------------------------------------------------------------------------- */

static void leave(Stream *s) {
    if (s->heap >= 0) { dequeue(s); cut++; }
    close(s->fd);
    streams[s->fd] = NULL;
    free(s->in.at); free(s->out.at); free(s);
}

static int flush(Stream *s) {            /* 0: the peer is gone */
    while (s->written < s->out.used) {
        ssize_t n = send(s->fd, s->out.at + s->written, s->out.used - s->written, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return 0;
        if (n < 0) break;
        s->written += n;
    }
    int waits = s->written < s->out.used;
    if (!waits) s->out.used = s->written = 0;
    if (waits != s->waiting) {
        struct epoll_event e = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.fd = s->fd};
        epoll_ctl(poller, EPOLL_CTL_MOD, s->fd, &e);
        s->waiting = waits;
    }
    return 1;
}

static void add_tail(Stream *s) {
    char data[512], framed[600];
    add(&s->out, framed, as_chunk(framed, "data: {\"id\":\"" ID "\"," EVENT
        "[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"));
    sprintf(data, "data: {\"id\":\"" ID "\"," EVENT "[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d,"
        "\"total_tokens\":%d}}\n\n", s->tokens, 8 + s->tokens);
    add(&s->out, framed, as_chunk(framed, data));
    add(&s->out, framed, as_chunk(framed, "data: [DONE]\n\n"));
    add(&s->out, "0\r\n\r\n", 5);
}

static int emit(Stream *s) {             /* what is due of one stream; 0: the peer is gone */
    int until = s->bulk ? s->tokens : s->sent + 1, begins = !s->sent;
    if (begins) add(&s->out, HEAD, sizeof HEAD - 1);
    for (; s->sent < until; s->sent++) add(&s->out, token[s->sent % 26], token_size[s->sent % 26]);
    if (s->sent == s->tokens) add_tail(s);
    int64_t now = now_ns();
    if (begins) {
        s->first = now;
        note(&ttft, (now - s->asked) / 1e6);
        note(&late, (now - s->due) / 1e6);
    }
    if (s->sent == s->tokens) {
        completed++;
        if (s->tokens > 1) note(&tpot, (now - s->first) / 1e6 / (s->tokens - 1));
        dequeue(s);
    } else {
        s->due += s->pace;
        settle(s, s->heap);
    }
    return flush(s);
}

/* -- reading -------------------------------------------------------------------------------------------------------- */

static double query(const char *from, const char *to, const char *name, double otherwise) {
    char *found = memmem(from, to - from, name, strlen(name));
    return found ? atof(found + strlen(name)) : otherwise;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int summary(char *to, const char *name, Samples *s) {
    double sum = 0;
    size_t n = s->used, last = n ? n - 1 : 0;
    if (!n) return sprintf(to, "\"%s\":{\"mean\":null,\"p50\":null,\"p99\":null,\"n\":0},", name);
    qsort(s->at, n, sizeof *s->at, by_value);
    for (size_t i = 0; i < n; i++) sum += s->at[i];
    return sprintf(to, "\"%s\":{\"mean\":%.6f,\"p50\":%.6f,\"p99\":%.6f,\"n\":%zu},", name, sum / n,
                   s->at[last * 50 / 100], s->at[last * 99 / 100], n);
}

static void answer(Stream *s, const char *body) {
    char head[128];
    add(&s->out, head, sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                               strlen(body)));
    add(&s->out, body, strlen(body));
}

static void told(Stream *s) {
    char body[2048];
    int n = sprintf(body, "{\"received\":%ld,\"completed\":%ld,\"cut\":%ld,\"open\":%d,\"peak_open\":%ld,",
                    (long)received, (long)completed, (long)cut, queued, (long)peak);
    n += summary(body + n, "ttft_ms", &ttft);
    n += summary(body + n, "tpot_ms", &tpot);
    n += summary(body + n, "late_ms", &late);
    sprintf(body + n, "\"cpu_s\":%.4f}", cpu_s() - cpu_from);
    answer(s, body);
}

static void asked(Stream *s, const char *line, const char *line_end, const char *body, const char *end) {
    int64_t now = now_ns();
    received++;
    double chunk = query(line, line_end, "chunk_ms=", 20), jitter = query(line, line_end, "jitter_ms=", 200);
    s->tokens = query(body, end, "\"max_tokens\":", 64);
    if (s->tokens < 1 || s->tokens > TOKENS_MOST) s->tokens = 1;
    s->bulk = query(line, line_end, "bulk=", 0) != 0;
    s->sent = 0;
    s->asked = now;
    s->pace = 1e6 * chunk;
    s->due = now + 1e6 * (query(line, line_end, "ttft_ms=", 200) + jitter * drand48());
    enqueue(s);
}

static int take(Stream *s) {             /* requests in the input, one at a time; 0: the peer is gone */
    while (s->heap < 0) {
        char *from = s->in.at, *head_end = s->in.used ? memmem(from, s->in.used, "\r\n\r\n", 4) : NULL;
        if (!head_end) break;
        char *body = head_end + 4, *line_end = memmem(from, s->in.used, "\r\n", 2);
        char *length = strcasestr(line_end, "\r\ncontent-length:");
        size_t size = length && length < head_end ? strtoul(length + 17, NULL, 10) : 0;
        if (body + size > from + s->in.used) break;
        if (!memcmp(from, "POST", 4)) asked(s, from, line_end, body, body + size);
        else if (!memcmp(from, "GET /truth", 10)) told(s);
        else if (!memcmp(from, "DELETE", 6)) {
            ttft.used = tpot.used = late.used = 0;
            received = completed = cut = 0;
            peak = queued;
            cpu_from = cpu_s();
            answer(s, "{}");
        } else answer(s, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\"}]}");
        s->in.used -= body + size - from;
        memmove(from, body + size, s->in.used);
        s->in.at[s->in.used] = 0;
    }
    return flush(s);
}

static int readable(Stream *s) {         /* 0: the peer is gone */
    static char block[65536];
    ssize_t n = recv(s->fd, block, sizeof block, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    if (s->in.used + n > INPUT) return 0;
    add(&s->in, block, n);
    add(&s->in, "", 1);                  /* an end for strcasestr */
    s->in.used--;
    return take(s);
}

static void welcome(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= FDS) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Stream *s = streams[fd] = calloc(1, sizeof *s);
        s->fd = fd;
        s->heap = -1;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

int main(void) {
    char data[512];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int k = 0; k < 26; k++) {
        sprintf(data, "data: {\"id\":\"" ID "\"," EVENT "[{\"index\":0,\"delta\":{\"content\":\"%c\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n", 'a' + k);
        token_size[k] = as_chunk(token[k], data);
    }
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) { perror("listen"); return 1; }
    getsockname(listener, (struct sockaddr *)&at, &size);
    poller = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    printf("http://127.0.0.1:%d/v1\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        struct timespec left = {0, 0}, *wait = NULL;
        if (queued) {
            int64_t ns = queue[0]->due - now_ns();
            if (ns > 0) left = (struct timespec){ns / 1000000000, ns % 1000000000};
            wait = &left;
        }
        int n = epoll_pwait2(poller, events, EVENTS, wait, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener) { welcome(listener); continue; }
            Stream *s = streams[events[i].data.fd];
            int here = 1;
            if (events[i].events & EPOLLOUT) here = flush(s);
            if (here && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) here = readable(s);
            if (!here) leave(s);
        }
        for (int turn = 0; queued && turn < 256 && queue[0]->due <= now_ns(); turn++) {
            Stream *s = queue[0];
            if (!emit(s) || (s->heap < 0 && !take(s))) leave(s);
        }
    }
}
