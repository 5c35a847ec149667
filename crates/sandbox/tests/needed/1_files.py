import fcntl, mmap, os, shutil, tempfile

open("a.txt", "w").write("text")
os.rename("a.txt", "b.txt"), os.link("b.txt", "c.txt"), os.symlink("b.txt", "d.txt"), os.readlink("d.txt")
os.chmod("b.txt", 0o600), os.access("b.txt", os.R_OK), os.truncate("b.txt", 2), os.remove("c.txt")
os.mkdir("dir"), os.rmdir("dir"), os.mkfifo("fifo"), os.umask(0o22)
shutil.copy2("b.txt", "e.txt"), shutil.copyfile("b.txt", "g.txt"), shutil.disk_usage(".")
os.stat("b.txt"), os.lstat("d.txt"), os.listdir(), os.getcwd(), os.chdir("/tmp"), os.chdir("/mnt/data")
with open("b.txt", "r+b") as file:
    fd = file.fileno()
    os.fsync(fd), os.fdatasync(fd), os.posix_fallocate(fd, 0, 8192), os.fchmod(fd, 0o644), os.fstatvfs(fd)
    os.pwrite(fd, b"x", 0), os.pread(fd, 1, 0), os.writev(fd, [b"y"]), os.readv(fd, [bytearray(1)])
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(4096)
    with mmap.mmap(fd, 4096) as mapped:
        mapped[0] = 1
        mapped.flush()
directory = os.open(".", os.O_RDONLY)
os.fchdir(directory)
os.mkdir("x", dir_fd=directory), os.rename("b.txt", "h.txt", src_dir_fd=directory, dst_dir_fd=directory)
os.link("h.txt", "i.txt", src_dir_fd=directory, dst_dir_fd=directory), os.symlink("h.txt", "j.txt", dir_fd=directory)
os.unlink("j.txt", dir_fd=directory), os.chmod("h.txt", 0o644, dir_fd=directory), os.mknod("k", dir_fd=directory)
os.utime("h.txt"), os.access("h.txt", os.R_OK, dir_fd=directory), os.readlink("d.txt", dir_fd=directory)
os.access("h.txt", os.R_OK, effective_ids=True)
shutil.rmtree("x"), os.close(directory)
with open("h.txt", "rb") as source, open("copy", "wb") as target:
    os.copy_file_range(source.fileno(), target.fileno(), 10)
    os.sendfile(target.fileno(), source.fileno(), 0, 10)
shutil.copy2("d.txt", "a link", follow_symlinks=False)
tempfile.NamedTemporaryFile().close()
