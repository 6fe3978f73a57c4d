/* Every kind of call of the C interface. Prints "ok" and returns 0, or names the first failed check. */

#include "quietline.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d, \"%s\")\n", __FILE__, __LINE__, #condition, errno,          \
                    ql_error());                                                                              \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

/* The call fails with this errno. */
#define FAILS(call, number)                                                                                   \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        CHECK((call) == -1 && errno == (number));                                                             \
    } while (0)

#define NO_HANDLE(call, number)                                                                               \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        CHECK((call) == NULL && errno == (number));                                                           \
    } while (0)

static struct sockaddr_in at(const char *ip, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
    return address;
}

static ql_stack *loopback(void) {
    ql_builder *builder = ql_builder_new();
    CHECK(builder != NULL);
    CHECK(ql_builder_name(builder, "c") == 0);
    CHECK(ql_builder_cores(builder, 1) == 0);
    CHECK(ql_builder_memory(builder, 16 << 20) == 0);
    ql_stack *stack = ql_builder_build(builder);
    CHECK(stack != NULL);
    return stack;
}

static int listener(ql_stack *stack, uint16_t port, int flags) {
    struct sockaddr_in address = at("127.0.0.1", port);
    int fd = ql_socket(stack, AF_INET, SOCK_STREAM | flags, 0);
    CHECK(fd >= 0);
    CHECK(ql_bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(ql_listen(fd, 16) == 0);
    return fd;
}

static void null_pointers(void) {
    ql_stack *stack = loopback();
    int stream = ql_socket(stack, AF_INET, SOCK_STREAM, 0), epoll = ql_epoll_create1(0);
    int datagram = ql_socket(stack, AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in here = at("127.0.0.1", 0);
    CHECK(ql_bind(datagram, (struct sockaddr *)&here, sizeof here) == 0);
    socklen_t len = sizeof here;
    int number = 0;
    uint64_t value;
    ql_builder *builder = ql_builder_new();

    NO_HANDLE(ql_builder_from_toml(NULL), EFAULT);
    NO_HANDLE(ql_builder_build(NULL), EFAULT);
    NO_HANDLE(ql_builder_port(NULL, NULL, 0, 0), EFAULT);
    FAILS(ql_builder_name(NULL, "x"), EFAULT);
    FAILS(ql_builder_name(builder, NULL), EFAULT);
    FAILS(ql_builder_tap(NULL, "x"), EFAULT);
    FAILS(ql_builder_tap(builder, NULL), EFAULT);
    FAILS(ql_builder_tun(builder, NULL), EFAULT);
    FAILS(ql_builder_cores(NULL, 1), EFAULT);
    FAILS(ql_builder_manual(NULL), EFAULT);
    FAILS(ql_builder_memory(NULL, 1 << 24), EFAULT);
    FAILS(ql_builder_address(NULL, "10.0.0.1/24"), EFAULT);
    FAILS(ql_builder_gateway(NULL, "10.0.0.1"), EFAULT);
    FAILS(ql_builder_route(NULL, "default via 10.0.0.1"), EFAULT);
    FAILS(ql_builder_sysctl(NULL, "a", "b"), EFAULT);
    ql_builder_free(builder);
    ql_builder_free(NULL);
    ql_stack_free(NULL);
    ql_port_free(NULL);

    FAILS(ql_stack_poll(NULL), EFAULT);
    FAILS(ql_stack_set_sysctl(NULL, "a", "b"), EFAULT);
    FAILS(ql_stack_set_sysctl(stack, NULL, "b"), EFAULT);
    FAILS(ql_stack_counter(stack, "TcpInSegs", NULL), EFAULT);
    FAILS(ql_stack_counter(stack, NULL, &value), EFAULT);
    FAILS(ql_socket(NULL, AF_INET, SOCK_STREAM, 0), EFAULT);
    FAILS(ql_bind(stream, NULL, len), EFAULT);
    FAILS(ql_connect(stream, NULL, len), EFAULT);
    FAILS(ql_getsockname(stream, NULL, &len), EFAULT);
    FAILS(ql_getsockname(stream, (struct sockaddr *)&here, NULL), EFAULT);
    FAILS(ql_getpeername(stream, NULL, &len), EFAULT);
    FAILS(ql_setsockopt(stream, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof number), EFAULT);
    FAILS(ql_getsockopt(stream, SOL_SOCKET, SO_KEEPALIVE, NULL, &len), EFAULT);
    FAILS(ql_getsockopt(stream, SOL_SOCKET, SO_KEEPALIVE, &number, NULL), EFAULT);
    FAILS(ql_ioctl(stream, FIONREAD, NULL), EFAULT);
    FAILS(ql_send(stream, NULL, 1, 0), EFAULT);
    FAILS(ql_sendto(datagram, NULL, 1, 0, (struct sockaddr *)&here, sizeof here), EFAULT);
    FAILS(ql_sendmsg(stream, NULL, 0), EFAULT);
    FAILS(ql_write(stream, NULL, 1), EFAULT);
    FAILS(ql_writev(stream, NULL, 1), EFAULT);
    FAILS(ql_recv(stream, NULL, 1, 0), EFAULT);
    FAILS(ql_recvfrom(datagram, &number, 1, 0, (struct sockaddr *)&here, NULL), EFAULT);
    FAILS(ql_recvmsg(stream, NULL, 0), EFAULT);
    FAILS(ql_read(stream, NULL, 1), EFAULT);
    FAILS(ql_readv(stream, NULL, 1), EFAULT);
    FAILS(ql_poll(NULL, 1, 0), EFAULT);
    FAILS(ql_epoll_ctl(epoll, EPOLL_CTL_ADD, stream, NULL), EFAULT);
    FAILS(ql_epoll_wait(epoll, NULL, 1, 0), EFAULT);
    FAILS(ql_port_inject(NULL, NULL, 0), EFAULT);
    FAILS(ql_port_drain(NULL, 1, NULL, NULL), EFAULT);
    FAILS(ql_port_wait(NULL, 0), EFAULT);
    FAILS(ql_port_fd(NULL), EFAULT);
    FAILS(ql_port_is_closed(NULL), EFAULT);
    CHECK(ql_close(stream) == 0 && ql_close(datagram) == 0 && ql_close(epoll) == 0);
    ql_stack_free(stack);
}

static void wrong_descriptors(void) {
    ql_stack *stack = loopback();
    int stream = ql_socket(stack, AF_INET, SOCK_STREAM, 0), epoll = ql_epoll_create1(EPOLL_CLOEXEC);
    int datagram = ql_socket(stack, AF_INET, SOCK_DGRAM, 0);
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(ql_listen(0, 1), EBADF);
    FAILS(ql_listen(-1, 1), EBADF);
    FAILS(ql_listen(stream + 100, 1), EBADF);
    FAILS(ql_listen(datagram, 1), EOPNOTSUPP);
    FAILS(ql_listen(epoll, 1), ENOTSOCK);
    FAILS(ql_accept(stream, NULL, NULL), EINVAL);
    FAILS(ql_epoll_ctl(stream, EPOLL_CTL_ADD, datagram, &event), EINVAL);
    FAILS(ql_epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &event), EINVAL);
    FAILS(ql_epoll_ctl(epoll, EPOLL_CTL_DEL, stream, NULL), ENOENT);
    FAILS(ql_epoll_wait(epoll, &event, 0, 0), EINVAL);
    FAILS(ql_epoll_create1(1), EINVAL);
    FAILS(ql_socket(stack, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(ql_socket(stack, AF_INET, SOCK_RAW, 0), ESOCKTNOSUPPORT);
    FAILS(ql_send(stream, "x", 1, 0), EPIPE);
    FAILS(ql_shutdown(stream, SHUT_WR), ENOTCONN);
    /* The kernel knows no such number. */
    FAILS(close(stream), EBADF);
    CHECK(ql_close(stream) == 0);
    FAILS(ql_close(stream), EBADF);
    CHECK(ql_close(datagram) == 0 && ql_close(epoll) == 0);
    ql_stack_free(stack);
}

static void *echo_once(void *argument) {
    int fd = *(int *)argument;
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    int accepted = ql_accept4(fd, (struct sockaddr *)&from, &len, 0);
    CHECK(accepted >= 0 && len == sizeof from && from.sin_family == AF_INET);
    char buffer[256];
    ssize_t got;
    while ((got = ql_recv(accepted, buffer, sizeof buffer, 0)) > 0) {
        CHECK(ql_send(accepted, buffer, (size_t)got, 0) == got);
    }
    CHECK(got == 0);
    CHECK(ql_close(accepted) == 0);
    return NULL;
}

/* Blocking calls, with a server in another thread. */
static void streams(void) {
    ql_stack *stack = loopback();
    int server = listener(stack, 7, 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, echo_once, &server) == 0);

    struct sockaddr_in to = at("127.0.0.1", 7), name;
    int client = ql_socket(stack, AF_INET, SOCK_STREAM, 0), on = 1, read_back = 0;
    CHECK(ql_connect(client, (struct sockaddr *)&to, sizeof to) == 0);
    FAILS(ql_connect(client, (struct sockaddr *)&to, sizeof to), EISCONN);
    socklen_t len = sizeof name;
    CHECK(ql_getpeername(client, (struct sockaddr *)&name, &len) == 0 && ntohs(name.sin_port) == 7);
    CHECK(ql_getsockname(client, (struct sockaddr *)&name, &len) == 0 && name.sin_port != 0);
    CHECK(ql_setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    len = sizeof read_back;
    CHECK(ql_getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &read_back, &len) == 0 && read_back == 1);

    char back[32] = {0};
    CHECK(ql_write(client, "one ", 4) == 4);
    struct iovec out[] = {{"two ", 4}, {"three", 5}};
    CHECK(ql_writev(client, out, 2) == 9);
    CHECK(ql_recv(client, back, 13, MSG_WAITALL) == 13 && memcmp(back, "one two three", 13) == 0);
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 2};
    CHECK(ql_sendmsg(client, &message, 0) == 9);
    struct iovec in[] = {{back, 4}, {back + 8, 5}};
    message.msg_iov = in;
    size_t total = 0;
    while (total < 9) {
        ssize_t got = ql_recv(client, back + total, 9 - total, 0);
        CHECK(got > 0);
        total += (size_t)got;
    }
    CHECK(memcmp(back, "two three", 9) == 0);
    CHECK(ql_send(client, "x", 1, 0) == 1 && ql_recvmsg(client, &message, 0) == 1 && back[0] == 'x');
    CHECK(ql_fcntl(client, F_GETFL, 0) == O_RDWR);
    CHECK(ql_fcntl(client, F_SETFL, O_NONBLOCK) == 0);
    FAILS(ql_recv(client, back, 1, 0), EAGAIN);
    CHECK(ql_ioctl(client, FIONREAD, &read_back) == 0 && read_back == 0);
    CHECK(ql_shutdown(client, SHUT_WR) == 0);
    struct pollfd wait = {.fd = client, .events = POLLIN};
    CHECK(ql_poll(&wait, 1, 5000) == 1 && (wait.revents & POLLIN));
    CHECK(ql_recv(client, back, 1, 0) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ql_close(client) == 0 && ql_close(server) == 0);

    int refused = ql_socket(stack, AF_INET, SOCK_STREAM, 0);
    to = at("127.0.0.1", 9);
    FAILS(ql_connect(refused, (struct sockaddr *)&to, sizeof to), ECONNREFUSED);
    CHECK(ql_close(refused) == 0);
    uint64_t segments;
    CHECK(ql_stack_counter(stack, "TcpInSegs", &segments) == 0 && segments > 10);
    FAILS(ql_stack_counter(stack, "NoSuch", &segments), ENOENT);
    CHECK(ql_stack_set_sysctl(stack, "net.ipv4.tcp_sack", "0") == 0);
    FAILS(ql_stack_set_sysctl(stack, "net.ipv4.tcp_sack", "7"), EINVAL);
    ql_stack_free(stack);
}

static void datagrams(void) {
    ql_stack *stack = loopback();
    int fd = ql_socket(stack, AF_INET6, SOCK_DGRAM, 0), client = ql_socket(stack, AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_port = htons(53)}, from;
    here.sin6_addr = in6addr_loopback;
    CHECK(ql_bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK(ql_sendto(client, "query", 5, 0, (struct sockaddr *)&here, sizeof here) == 5);
    char buffer[16];
    socklen_t len = sizeof from;
    CHECK(ql_recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &len) == 5);
    CHECK(len == sizeof from && memcmp(buffer, "query", 5) == 0);
    CHECK(ql_connect(fd, (struct sockaddr *)&from, len) == 0 && ql_send(fd, "answer", 6, 0) == 6);
    struct iovec part = {buffer, 3};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1};
    CHECK(ql_recvmsg(client, &message, 0) == 3 && message.msg_flags == MSG_TRUNC);
    CHECK(message.msg_namelen == sizeof from && ntohs(from.sin6_port) == 53);
    struct timeval limit = {.tv_usec = 1000};
    CHECK(ql_setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    FAILS(ql_recv(client, buffer, sizeof buffer, 0), EAGAIN);
    CHECK(ql_close(fd) == 0 && ql_close(client) == 0);
    ql_stack_free(stack);
}

/* Nonblocking sockets and one epoll set in one thread. */
static void epoll(void) {
    ql_stack *stack = loopback();
    int server = listener(stack, 80, SOCK_NONBLOCK), set = ql_epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server}, events[4];
    CHECK(ql_epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0);
    FAILS(ql_epoll_ctl(set, EPOLL_CTL_ADD, server, &event), EEXIST);
    CHECK(ql_epoll_wait(set, events, 4, 0) == 0);

    struct sockaddr_in to = at("127.0.0.1", 80);
    int client = ql_socket(stack, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), accepted;
    event = (struct epoll_event){.events = EPOLLOUT | EPOLLIN | EPOLLET, .data.fd = client};
    FAILS(ql_connect(client, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    CHECK(ql_epoll_wait(set, events, 1, 5000) == 1 && events[0].data.fd == server);
    CHECK((accepted = ql_accept4(server, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    CHECK(ql_epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
    CHECK(ql_epoll_wait(set, events, 4, 5000) == 1);
    CHECK(events[0].data.fd == client && events[0].events == EPOLLOUT);
    CHECK(ql_epoll_wait(set, events, 4, 0) == 0);
    CHECK(ql_send(accepted, "ab", 2, 0) == 2);
    CHECK(ql_epoll_wait(set, events, 4, 5000) == 1 && events[0].events == (EPOLLIN | EPOLLOUT));
    CHECK(ql_epoll_wait(set, events, 4, 1) == 0);
    event.events = EPOLLIN;
    CHECK(ql_epoll_ctl(set, EPOLL_CTL_MOD, client, &event) == 0);
    CHECK(ql_epoll_wait(set, events, 4, 0) == 1 && events[0].events == EPOLLIN);
    /* A closed socket leaves the set, and its number may be used again. */
    CHECK(ql_close(client) == 0);
    CHECK(ql_epoll_wait(set, events, 4, 0) == 0);
    int again = ql_socket(stack, AF_INET, SOCK_STREAM, 0);
    CHECK(again == client && ql_epoll_ctl(set, EPOLL_CTL_ADD, again, &event) == 0);
    CHECK(ql_close(again) == 0 && ql_close(accepted) == 0 && ql_close(server) == 0 && ql_close(set) == 0);
    ql_stack_free(stack);
}

static int forward(void *to, const struct iovec *parts, size_t part_count, size_t len, uint16_t gso_size) {
    char frame[2048];
    size_t at = 0;
    for (size_t part = 0; part < part_count; part++) {
        memcpy(frame + at, parts[part].iov_base, parts[part].iov_len);
        at += parts[part].iov_len;
    }
    CHECK(at == len && gso_size == 0);
    struct iovec whole = {frame, len};
    return ql_port_inject(to, &whole, 1) == 1 ? 0 : EAGAIN;
}

static int refuse(void *user, const struct iovec *parts, size_t part_count, size_t len, uint16_t gso_size) {
    (void)user, (void)parts, (void)part_count, (void)len, (void)gso_size;
    return ENOSPC;
}

static ql_stack *with_port(const char *address, ql_port **port) {
    ql_builder *builder = ql_builder_new();
    CHECK((*port = ql_builder_port(builder, "wan", 1400, 0)) != NULL);
    CHECK(ql_builder_address(builder, address) == 0);
    CHECK(ql_builder_sysctl(builder, "net.ipv4.tcp_sack", "1") == 0);
    CHECK(ql_builder_manual(builder) == 0);
    ql_stack *stack = ql_builder_build(builder);
    CHECK(stack != NULL);
    return stack;
}

/* Two stacks without workers, whose ports this thread joins. */
static void ports(void) {
    enum { BYTES = 100000 };
    ql_port *left, *right;
    ql_stack *client = with_port("10.0.0.1/24", &left), *server = with_port("10.0.0.2/24", &right);
    struct sockaddr_in address = at("10.0.0.2", 80);
    int fd = ql_socket(server, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), accepted = -1;
    int out = ql_socket(client, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(ql_bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && ql_listen(fd, 1) == 0);
    FAILS(ql_connect(out, (struct sockaddr *)&address, sizeof address), EINPROGRESS);
    CHECK(ql_port_fd(left) >= 0 && ql_port_wait(left, 5000) == 1);
    FAILS(ql_port_drain(left, 1, NULL, NULL), EFAULT);
    FAILS(ql_port_drain(left, 1, refuse, NULL), ENOSPC);
    FAILS(ql_port_inject(left, NULL, 1), EFAULT);

    static char sent[BYTES], got[BYTES];
    size_t written = 0, received = 0;
    for (size_t at = 0; at < BYTES; at++) {
        sent[at] = (char)(at * 2654435761u >> 13);
    }
    while (received < BYTES) {
        CHECK(ql_port_drain(left, 64, forward, right) >= 0);
        CHECK(ql_port_drain(right, 64, forward, left) >= 0);
        CHECK(ql_stack_poll(client) >= 0 && ql_stack_poll(server) >= 0);
        if (accepted < 0) {
            accepted = ql_accept4(fd, NULL, NULL, SOCK_NONBLOCK);
            continue;
        }
        ssize_t moved = ql_send(out, sent + written, BYTES - written, 0);
        written += moved > 0 ? (size_t)moved : 0;
        moved = ql_recv(accepted, got + received, BYTES - received, 0);
        received += moved > 0 ? (size_t)moved : 0;
    }
    CHECK(memcmp(sent, got, BYTES) == 0);
    CHECK(ql_close(out) == 0 && ql_close(accepted) == 0 && ql_close(fd) == 0);
    CHECK(ql_port_is_closed(left) == 0);
    ql_stack_free(client);
    ql_stack_free(server);
    CHECK(ql_port_is_closed(left) == 1);
    struct iovec frame = {sent, 100};
    FAILS(ql_port_inject(left, &frame, 1), EPIPE);
    ql_port_free(left);
    ql_port_free(right);
}

static void configurations(void) {
    NO_HANDLE(ql_builder_from_toml("cores = \"many\""), EINVAL);
    CHECK(strstr(ql_error(), "cores") != NULL);
    ql_builder *builder = ql_builder_from_toml("name = \"file\"\n[sysctl]\n\"net.ipv4.tcp_sack\" = 0\n");
    CHECK(builder != NULL);
    ql_stack *stack = ql_builder_build(builder);
    CHECK(stack != NULL);
    ql_stack_free(stack);
    builder = ql_builder_new();
    FAILS(ql_builder_address(builder, "10.0.0.1"), EINVAL);
    CHECK(strstr(ql_error(), "10.0.0.1") != NULL);
    CHECK(ql_builder_cores(builder, 2) == 0);
    FAILS(ql_builder_gateway(builder, "nowhere"), EINVAL);
    FAILS(ql_builder_route(builder, "default via nowhere"), EINVAL);
    ql_builder_free(builder);
    builder = ql_builder_new();
    CHECK(ql_builder_sysctl(builder, "net.ipv4.no_such", "1") == 0);
    NO_HANDLE(ql_builder_build(builder), ENOENT);
    CHECK(strstr(ql_error(), "no_such") != NULL);
    builder = ql_builder_new();
    FAILS(ql_builder_fd(builder, -1, 0, 0), EBADF);
    NO_HANDLE(ql_builder_port(builder, NULL, 20, 0), EINVAL);
    ql_builder_free(builder);
}

int main(void) {
    null_pointers();
    wrong_descriptors();
    streams();
    datagrams();
    epoll();
    ports();
    configurations();
    puts("ok");
    return 0;
}
