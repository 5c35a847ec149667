import asyncio, faulthandler, os, platform, select, signal, threading, time

def handler(*_):
    pass

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.05)
signal.setitimer(signal.ITIMER_REAL, 1, 1), signal.pause(), signal.alarm(0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.raise_signal(signal.SIGUSR1), signal.sigtimedwait([signal.SIGUSR1], 1)
os.kill(os.getpid(), 0), signal.pthread_kill(threading.get_ident(), 0)
faulthandler.enable(file=open("log", "w"))
platform.uname(), os.urandom(8), time.process_time(), time.thread_time(), threading.get_native_id()
thread = threading.Thread(target=handler)
thread.start(), thread.join()
select.select([], [], [], 0.001), select.poll().poll(1)
epoll = select.epoll()
epoll.register(os.pipe()[0]), epoll.poll(0.001), epoll.close()
os.eventfd(0), os.memfd_create("m"), os.isatty(0)

async def serve():
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    await process.communicate(b"x")
    await asyncio.to_thread(time.sleep, 0.001)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), "socket")
    reader, writer = await asyncio.open_unix_connection("socket")
    writer.get_extra_info("peername")
    writer.write_eof()
    await reader.read()
    writer.close()
    server.close()

await serve()
