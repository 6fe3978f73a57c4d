/* The C interface of quietline. Generated from crates/capi by cbindgen: see docs/c.md. */

#ifndef QUIETLINE_H
#define QUIETLINE_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

// A stack that is being built.
typedef struct ql_builder ql_builder;

// The program's end of a device.
typedef struct ql_port ql_port;

// A running stack.
typedef struct ql_stack ql_stack;

// Function that `ql_port_drain` lends a frame to. `parts` are `part_count` pieces of memory with
// `len` bytes together, valid until the function returns. `gso_size` is the payload of each TCP
// segment of a superframe, otherwise 0. Returns 0 if the frame is done, or an errno that ends the
// call and leaves the frame in the port. The function must return: no longjmp, no C++ exception.
typedef int (*ql_frame_fn)(void *user,
                           const struct iovec *parts,
                           size_t part_count,
                           size_t len,
                           uint16_t gso_size);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns a line of text about the last call of this thread that has failed to build a stack, to
// open a device or to set a value. The text is valid until the next such call.
const char *ql_error(void);

// Returns a builder of a stack with loopback, 127.0.0.1 and ::1.
ql_builder *ql_builder_new(void);

// Returns a builder of the stack that `text` describes, in TOML (docs/host-file.md), and opens its
// devices.
ql_builder *ql_builder_from_toml(const char *text);

// Sets the name of the stack in messages and thread names.
int ql_builder_name(ql_builder *builder, const char *name);

// Adds a tap with the interface name `name`, which is created and exists as long as the stack.
int ql_builder_tap(ql_builder *builder, const char *name);

// Adds a tun with the interface name `name`, as `ql_builder_tap`.
int ql_builder_tun(ql_builder *builder, const char *name);

// Adds a tun or tap of a descriptor of /dev/net/tun that is attached to its interface. `is_tap`
// says which of both it is. An `mtu` of 0 reads the MTU from the kernel. The library closes the
// descriptor, also if the call fails.
int ql_builder_fd(ql_builder *builder, int fd, int is_tap, uint32_t mtu);

// Adds an address with its prefix length to the last device: "10.0.0.1/24".
int ql_builder_address(ql_builder *builder, const char *address);

// Adds the default route of the address family of `gateway`.
int ql_builder_gateway(ql_builder *builder, const char *gateway);

// Adds a route in the syntax of `ip route add`: "192.0.2.0/24 via 10.0.0.2 metric 7".
int ql_builder_route(ql_builder *builder, const char *route);

// Sets a setting by its name (docs/sysctl.md). A name that does not exist and a value that is not
// allowed are errors of `ql_builder_build`.
int ql_builder_sysctl(ql_builder *builder, const char *name, const char *value);

// Sets the number of cores, 1 to 64. Default: 1.
int ql_builder_cores(ql_builder *builder, uint16_t cores);

// Bounds the memory of the stack, in bytes: packets, buffers and connections together.
int ql_builder_memory(ql_builder *builder, size_t bytes);

// Starts no worker threads: the stack runs in `ql_stack_poll`, in socket calls and in calls of
// ports only.
int ql_builder_manual(ql_builder *builder);

// Builds the stack and frees the builder, also if the call fails.
ql_stack *ql_builder_build(ql_builder *builder);

// Frees a builder without building a stack. A null pointer is ignored.
void ql_builder_free(ql_builder *builder);

// Ends a stack: its connections are aborted, and calls on its sockets fail. The sockets still have
// to be closed. A null pointer is ignored.
void ql_stack_free(ql_stack *stack);

// Runs all pending work of a stack without workers. Returns the time in nanoseconds after which
// the stack must be polled again, even if no frame arrives; `INT64_MAX` if no timer is armed.
int64_t ql_stack_poll(const ql_stack *stack);

// Changes a setting of a running stack, as `sysctl -w` does.
int ql_stack_set_sysctl(const ql_stack *stack, const char *name, const char *value);

// Reads a counter by the name that nstat prints (docs/counters.md). `ENOENT` for a name that does
// not exist.
int ql_stack_counter(const ql_stack *stack, const char *name, uint64_t *value);

// Adds a device for IP packets to the builder, and returns the port that has its packets. A `name`
// of NULL is "port0", an `mtu` of 0 is 1500, `queue_bytes` of 0 is 1 MiB: the bytes that wait in
// each direction. The port outlives the stack, and must be freed.
ql_port *ql_builder_port(ql_builder *builder, const char *name, uint32_t mtu, size_t queue_bytes);

// Gives frames to the stack, and processes them. Returns the number of frames taken; those that
// found no room have to be given again when the descriptor of the port is readable. `EPIPE` if the
// stack has ended, `ENOBUFS` without packet memory.
ssize_t ql_port_inject(const ql_port *port, const struct iovec *frames, size_t frame_count);

// Lends up to `max` frames of the stack to `each`. Returns the number of frames that are done, or
// -1 with the errno that `each` has returned.
ssize_t ql_port_drain(const ql_port *port, size_t max, ql_frame_fn each, void *user);

// Sleeps until frames wait in the port, there is room again, or the stack has ended; at most
// `timeout_ms` milliseconds, without limit for a negative number. Returns 1, or 0 after that time.
int ql_port_wait(const ql_port *port, int timeout_ms);

// Returns a descriptor of the kernel that is readable when `ql_port_wait` would return 1. It
// belongs to the port.
int ql_port_fd(const ql_port *port);

// Returns 1 if the stack has ended or has removed the device, otherwise 0.
int ql_port_is_closed(const ql_port *port);

// Frees a port: its device disappears from the stack. A null pointer is ignored.
void ql_port_free(ql_port *port);

// Opens a socket of `stack`, as socket(2): `AF_INET` or `AF_INET6`, `SOCK_STREAM` or `SOCK_DGRAM`,
// with `SOCK_NONBLOCK` if wanted. The number that it returns is for the calls of this library
// only. It has to be closed by `ql_close`.
int ql_socket(const ql_stack *stack, int domain, int kind, int protocol);

// As bind(2).
int ql_bind(int fd, const struct sockaddr *addr, socklen_t len);

// As listen(2).
int ql_listen(int fd, int backlog);

// As accept(2).
int ql_accept(int fd, struct sockaddr *addr, socklen_t *len);

// As accept4(2).
int ql_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);

// As connect(2).
int ql_connect(int fd, const struct sockaddr *addr, socklen_t len);

// As shutdown(2).
int ql_shutdown(int fd, int how);

// As close(2), for sockets and epoll sets. A thread in a call on the socket returns with an error.
int ql_close(int fd);

// As getsockname(2).
int ql_getsockname(int fd, struct sockaddr *addr, socklen_t *len);

// As getpeername(2).
int ql_getpeername(int fd, struct sockaddr *addr, socklen_t *len);

// As setsockopt(2), with the numbers of Linux.
int ql_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

// As getsockopt(2), with the numbers of Linux.
int ql_getsockopt(int fd, int level, int name, void *value, socklen_t *len);

// As fcntl(2): `F_GETFL` and `F_SETFL`, of which `O_NONBLOCK` has an effect.
int ql_fcntl(int fd, int command, long argument);

// As ioctl(2) on a TCP socket: `FIONREAD`, `FIONBIO`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK`.
int ql_ioctl(int fd, unsigned long request, int *argument);

// As send(2).
ssize_t ql_send(int fd, const void *buf, size_t len, int flags);

// As sendto(2).
ssize_t ql_sendto(int fd,
                  const void *buf,
                  size_t len,
                  int flags,
                  const struct sockaddr *addr,
                  socklen_t addr_len);

// As sendmsg(2). Control messages are refused with `EOPNOTSUPP`.
ssize_t ql_sendmsg(int fd, const struct msghdr *msg, int flags);

// As write(2).
ssize_t ql_write(int fd, const void *buf, size_t len);

// As writev(2).
ssize_t ql_writev(int fd, const struct iovec *iov, int iovcnt);

// As recv(2).
ssize_t ql_recv(int fd, void *buf, size_t len, int flags);

// As recvfrom(2).
ssize_t ql_recvfrom(int fd,
                    void *buf,
                    size_t len,
                    int flags,
                    struct sockaddr *addr,
                    socklen_t *addr_len);

// As recvmsg(2). No control message is passed on; `MSG_CTRUNC` says that there was one.
ssize_t ql_recvmsg(int fd, struct msghdr *msg, int flags);

// As read(2).
ssize_t ql_read(int fd, void *buf, size_t len);

// As readv(2).
ssize_t ql_readv(int fd, const struct iovec *iov, int iovcnt);

// As poll(2), for sockets of this library. `POLLNVAL` for any other number.
int ql_poll(struct pollfd *fds, nfds_t len, int timeout_ms);

// As epoll_create1(2). The flags have no effect: no descriptor of the kernel is opened.
int ql_epoll_create1(int flags);

// As epoll_ctl(2). A set contains sockets, and no other sets.
int ql_epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event);

// As epoll_wait(2). Costs as much as there are sockets with news, however many the set has.
int ql_epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUIETLINE_H */
