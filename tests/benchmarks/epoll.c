/* The least a fan-out server can do: lines in, the same lines out to every subscriber.
 *
 *     cc -O2 -o epoll epoll.c && ./epoll PORT
 *
 * A yardstick, not a server: it looks at the first byte of a line only ('s' subscribes the
 * connection, 'p' followed by 'i' is answered with "pong", any other 'p' is sent on), knows no
 * tags, and ends where memory does. One thread, level-triggered epoll; what one read brought is
 * sent to each subscriber with one send(), and waits in a buffer where the socket is full.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

struct peer {
	int fd, subscribed, waiting;
	char *in, *out;                     /* unfinished line; unsent bytes */
	size_t in_size, out_size, out_room;
	struct peer *next;
};

static int loop;
static struct peer *peers;

static void watch(struct peer *peer, int change, int writable)
{
	struct epoll_event event = { EPOLLIN | (writable ? EPOLLOUT : 0), { .ptr = peer } };
	epoll_ctl(loop, change, peer->fd, &event);
	peer->waiting = writable;
}

static void flush(struct peer *peer)
{
	while (peer->out_size) {
		ssize_t sent = send(peer->fd, peer->out, peer->out_size, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent <= 0)
			break;
		peer->out_size -= (size_t)sent;
		memmove(peer->out, peer->out + sent, peer->out_size);
	}
	if ((peer->out_size > 0) != peer->waiting)
		watch(peer, EPOLL_CTL_MOD, peer->out_size > 0);
}

static void put(struct peer *peer, const char *data, size_t size)
{
	if (!peer->out_size) {
		ssize_t sent = send(peer->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent > 0) {
			data += sent;
			size -= (size_t)sent;
		}
	}
	if (!size)
		return;
	if (peer->out_size + size > peer->out_room) {
		peer->out_room = 2 * (peer->out_size + size);
		if (!(peer->out = realloc(peer->out, peer->out_room)))
			abort();
	}
	memcpy(peer->out + peer->out_size, data, size);
	peer->out_size += size;
	if (!peer->waiting)
		watch(peer, EPOLL_CTL_MOD, 1);
}

/* Lines from start to end are publishes: they go to every subscriber at once. */
static void fan_out(const char *start, const char *end)
{
	if (start < end)
		for (struct peer *each = peers; each; each = each->next)
			if (each->subscribed && each->fd >= 0)
				put(each, start, (size_t)(end - start));
}

static void drop(struct peer *peer)
{
	close(peer->fd); /* the entry stays: this process lives as long as a benchmark */
	peer->fd = -1;
	peer->out_size = peer->in_size = 0;
}

static void take(struct peer *peer)
{
	static char data[2 * CHUNK];
	size_t size = peer->in_size;
	memcpy(data, peer->in, size);
	ssize_t got = recv(peer->fd, data + size, CHUNK, MSG_DONTWAIT);
	if (got <= 0) {
		if (got == 0 || errno != EAGAIN)
			drop(peer);
		return;
	}
	size += (size_t)got;
	char *line = data, *run = data, *end;
	while ((end = memchr(line, '\n', (size_t)(data + size - line)))) {
		if (*line != 'p' || line[1] == 'i') {
			fan_out(run, line);
			run = end + 1;
			if (*line == 's')
				peer->subscribed = 1;
			else if (*line == 'p')
				put(peer, "pong\n", 5);
		}
		line = end + 1;
	}
	fan_out(run, line);
	peer->in_size = (size_t)(data + size - line);
	if (peer->in_size > CHUNK)
		drop(peer);
	else
		memcpy(peer->in, line, peer->in_size);
}

static void enter(int fd)
{
	int on = 1;
	struct peer *peer = calloc(1, sizeof *peer);
	if (!peer || !(peer->in = malloc(CHUNK)))
		abort();
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	peer->fd = fd;
	peer->next = peers;
	peers = peer;
	watch(peer, EPOLL_CTL_ADD, 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct epoll_event ready[256];
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	if (argc != 2)
		return 2;
	address.sin_port = htons((uint16_t)atoi(argv[1]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
		return 1;
	loop = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { .ptr = NULL } };
	epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		int count = epoll_wait(loop, ready, 256, -1);
		for (int n = 0; n < count; n++) {
			struct peer *peer = ready[n].data.ptr;
			if (!peer) {
				int fd = accept(listener, NULL, NULL);
				if (fd >= 0)
					enter(fd);
			} else {
				if (peer->fd >= 0 && ready[n].events & EPOLLOUT)
					flush(peer);
				if (peer->fd >= 0 && ready[n].events & ~(uint32_t)EPOLLOUT)
					take(peer);
			}
		}
	}
}
