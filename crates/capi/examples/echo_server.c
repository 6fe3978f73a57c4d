/* An echo server on a stack in this process: nonblocking sockets and one epoll set.
 *
 *     cc -Icrates/capi/include crates/capi/examples/echo_server.c -Ltarget/release -lquietline -o echo_server
 *     ./echo_server ql0 10.7.0.2/24      # on a tap; root. ip addr add 10.7.0.1/24 dev ql0; nc 10.7.0.2 7
 *     ./echo_server                      # without arguments: a client over loopback, then the end
 */

#include "quietline.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *step) {
    perror(step);
    fprintf(stderr, "%s\n", ql_error());
    exit(1);
}

static ql_stack *stack;

/* Talks to the server and ends the process. */
static void *client(void *unused) {
    (void)unused;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = ql_socket(stack, AF_INET, SOCK_STREAM, 0);
    if (ql_connect(fd, (struct sockaddr *)&to, sizeof to) < 0) fail("ql_connect");
    char text[6] = "";
    if (ql_send(fd, "hello", 5, 0) != 5) fail("ql_send");
    if (ql_recv(fd, text, 5, MSG_WAITALL) != 5) fail("ql_recv");
    printf("the server answers \"%s\"\n", text);
    exit(0);
}

static void echo(int fd) {
    char buffer[4096];
    ssize_t got;
    while ((got = ql_recv(fd, buffer, sizeof buffer, 0)) > 0) {
        /* A client that does not read its answers gets no more of them. */
        if (ql_send(fd, buffer, (size_t)got, 0) != got) break;
    }
    if (got == 0) ql_close(fd);
}

int main(int argc, char **argv) {
    ql_builder *builder = ql_builder_new();
    if (argc == 3) {
        if (ql_builder_tap(builder, argv[1]) < 0) fail(argv[1]);
        if (ql_builder_address(builder, argv[2]) < 0) fail(argv[2]);
    }
    if (!(stack = ql_builder_build(builder))) fail("ql_builder_build");

    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
    int listener = ql_socket(stack, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (ql_bind(listener, (struct sockaddr *)&any, sizeof any) < 0) fail("ql_bind");
    if (ql_listen(listener, 128) < 0) fail("ql_listen");
    int set = ql_epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
    if (ql_epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) < 0) fail("ql_epoll_ctl");

    pthread_t thread;
    if (argc == 1 && pthread_create(&thread, NULL, client, NULL) != 0) fail("pthread_create");
    for (;;) {
        int count = ql_epoll_wait(set, events, 64, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd != listener) {
                echo(events[i].data.fd);
                continue;
            }
            event.data.fd = ql_accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (event.data.fd >= 0) ql_epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event);
        }
    }
}
