// The gate: a workload starts once every emulated server is there and the names resolve that it will connect to.
//
// The agent writes DIR/go when the core says that all servers have said hello. Names are looked up in /etc/hosts and by
// the resolver inside the C library, because getaddrinfo would load the NSS modules of a C library that the image does
// not have.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <errno.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "shared.h"

static int in_hosts_file(const char *name) {
  FILE *file = fopen("/etc/hosts", "re");
  char line[4096];
  int found = 0;
  while (file && !found && fgets(line, sizeof line, file)) {
    line[strcspn(line, "#\n")] = 0;
    char *rest = NULL;
    if (!strtok_r(line, " \t", &rest)) // the address
      continue;
    for (char *word; !found && (word = strtok_r(NULL, " \t", &rest));)
      found = strcasecmp(word, name) == 0;
  }
  if (file)
    fclose(file);
  return found;
}

static int resolves(const char *name) {
  unsigned char answer[NS_MAXMSG];
  struct in6_addr address;
  if (inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1 || in_hosts_file(name))
    return 1;
  if (res_init() != 0) // once for each try, since a pod's name servers may come late too
    return 0;
  _res.retrans = 1; // seconds; this program asks again by itself
  _res.retry = 1;
  return res_search(name, ns_c_in, ns_t_a, answer, sizeof answer) > 0 ||
         res_search(name, ns_c_in, ns_t_aaaa, answer, sizeof answer) > 0;
}

void wait_at_gate(double limit_s, char *const *names, int count, const sigset_t *signals) {
  const double deadline = now_s() + limit_s;
  char go[PATH_MAX + 32], reason[512];
  shared_path(go, "go");
  for (int open = 0, named = 0;;) {
    int failed;
    if (told_to_stop(&failed, reason))
      fail(failed ? kCannotStart : 0, "the run ended before it began: %s", reason);
    open = open || access(go, F_OK) == 0;
    while (open && named < count && resolves(names[named]))
      named++;
    if (open && named == count)
      return;
    if (now_s() >= deadline && open)
      fail(kCannotStart, "%s does not resolve after %g s", names[named], limit_s);
    if (now_s() >= deadline)
      fail(kCannotStart, "after %g s not every emulated server is there (the simulation core says which)", limit_s);
    const struct timespec pause = {0, 100 * 1000 * 1000};
    int number = sigtimedwait(signals, NULL, &pause);
    if (number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT)
      fail(128 + number, "interrupted by SIG%s before the workload began", sigabbrev_np(number));
  }
}
