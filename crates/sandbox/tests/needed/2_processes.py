import os, resource, subprocess, time

SCRIPTS = [
    "ls -la | head -3; cp -a h.txt l.txt; mv l.txt m.txt; ln m.txt n.txt; ln -s m.txt o.txt; touch p; find . -name p",
    "sort h.txt | uniq | wc -l; tar cf t.tar h.txt; tar xf t.tar; gzip -k h.txt; nice -n 1 true; timeout 5 true; nproc",
    "(sleep 5 & kill $!; wait); trap true USR1; kill -USR1 $$; read x < h.txt; cat h.txt | tee q; df -h .; ps; stat h.txt",
    "set -m; sleep 0.01 & fg; mktemp; dd if=/dev/zero of=z count=1; truncate -s 1 z; mkfifo f2; chmod 600 z; rm z f2",
    "setsid true; mkdir -p q1/q2; rm -r q1; split -b 1000 h.txt; xargs echo < h.txt; awk 1 h.txt; sed -n 1p h.txt; env; id",
    "bash -i -c true < /dev/null; coproc cat; exec 3>&-; test -w h.txt; read -t 0.01 < fifo & sleep 0.05; echo > fifo",
]
for script in SCRIPTS:
    for shell in ("bash", "sh"):
        subprocess.run([shell, "-c", script], capture_output=True, timeout=60)
subprocess.run(["true"], start_new_session=True), subprocess.run(["true"], process_group=0), os.system("true")
subprocess.run(["true"], preexec_fn=os.getpid), os.posix_spawnp("true", ["true"], {}), os.wait()
os.getpgid(0), os.getpgrp(), os.getsid(0), os.getppid(), os.getuid(), os.geteuid(), os.getgid(), os.getegid()
os.getgroups(), os.getpriority(os.PRIO_PROCESS, 0), os.nice(1), os.getpid()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED)
read, write = os.pipe()
read2, write2 = os.pipe2(os.O_NONBLOCK)
os.dup2(read, 60), os.dup2(read, 61, inheritable=False), os.dup(read), os.set_blocking(read, False)
for fd in (read, write, read2, write2, 60, 61):
    os.close(fd)
resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_NOFILE), os.sysconf("SC_PHYS_PAGES")
os.cpu_count(), os.sched_getaffinity(0), os.sched_setaffinity(0, os.sched_getaffinity(0)), os.sched_yield()
sleeper = subprocess.Popen(["sleep", "0.3"])
time.sleep(0.1)
sleeper.send_signal(19), time.sleep(0.02), sleeper.send_signal(18), sleeper.wait()
