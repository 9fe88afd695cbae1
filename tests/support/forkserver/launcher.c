/* Stands for a process that the fork server forks: see __init__.py.

   Compiled with PYTHON (the real interpreter) and SOCKET (the fork server's). */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_FILES 200  /* Linux passes at most 253 in one message */
#define FIRST_FREE 1000 /* of the numbers of files, as in server.py */

static int server = -1;

static void forward(int number)
{
    int kept = errno;
    unsigned char byte = number;
    if (send(server, &byte, 1, MSG_NOSIGNAL) < 0) {
        /* The process has ended; its status is on the way. */
    }
    errno = kept;
}

static int connect_to_server(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    /* Above the files that the process is to have. */
    int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (first < 0)
        return -1;
    int high = fcntl(first, F_DUPFD_CLOEXEC, FIRST_FREE);
    close(first);
    if (high < 0 || connect(high, (struct sockaddr *)&address, sizeof address))
        return -1;
    return high;
}

/* Which files are open, less the connection to the server: how many, or -1 where they
   are too many or their numbers too high to be passed. All of them are: one that only
   the launcher had open would be closed at another time than the process ends. */
static int open_files(int *numbers)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder)
        return -1;
    for (struct dirent *entry; count >= 0 && (entry = readdir(folder));) {
        int fd = atoi(entry->d_name);
        if (*entry->d_name == '.' || fd == dirfd(folder) || fd == server)
            continue;
        if (count == MOST_FILES || fd >= FIRST_FREE)
            count = -1;
        else
            numbers[count++] = fd;
    }
    closedir(folder);
    return count;
}

/* The numbers of all open files as one message, and the files with it. */
static int send_files(void)
{
    int numbers[MOST_FILES];
    int count = open_files(numbers);
    if (count < 0)
        return -1;
    struct iovec part = {numbers, sizeof(int) * count};
    char space[CMSG_SPACE(sizeof numbers)];
    memset(space, 0, sizeof space);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int none = -1;
    if (count) {
        message.msg_control = space;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *files = CMSG_FIRSTHDR(&message);
        files->cmsg_level = SOL_SOCKET;
        files->cmsg_type = SCM_RIGHTS;
        files->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(files), numbers, sizeof(int) * count);
    } else {
        part.iov_base = &none;
        part.iov_len = sizeof none;
    }
    return sendmsg(server, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int receive(void *into, size_t size)
{
    ssize_t got;
    do
        got = recv(server, into, size, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)size ? 0 : -1;
}

int main(int argc, char **argv)
{
    char answer = 0;
    if (argc > 1) {
        server = connect_to_server();
        if (server >= 0 && !send_files() && receive(&answer, 1))
            answer = 0;
    }
    if (answer != 'F') {
        argv[0] = PYTHON;
        execv(PYTHON, argv);
        return 127;
    }
    static const int forwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
    struct sigaction action = {.sa_handler = forward};
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaction(forwarded[i], &action, NULL);
    /* Whoever reads from the process waits for its end alone. */
    for (int fd = 0; fd < FIRST_FREE; fd++)
        close(fd);
    int status;
    if (receive(&status, sizeof status))
        return 127;
    if (WIFSIGNALED(status)) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(WTERMSIG(status), SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        raise(WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}
