def _view(path, first, last):
    import os
    if os.path.isdir(path):
        entries = sorted(os.listdir(path))
        lines = [entry + "/" if os.path.isdir(os.path.join(path, entry)) else entry for entry in entries]
    else:
        with open(path, "rb") as file:
            content = file.read()
        try:
            lines = content.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is no text in UTF-8; read it with a program") from None
    shown = lines[first - 1 :] if last is None else lines[first - 1 : last]
    print("\n".join(shown))
    return [len(shown), first, len(lines)]
---
def _create(path, text):
    import os
    is_update = os.path.exists(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    print("The file was replaced." if is_update else "The file was made.")
    return [int(is_update)]
---
def _replace(path, old, new):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    if "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if count != 1:
        raise ValueError(f"old_str occurs {count} times in {path}; it must occur exactly once")
    start = text.count("\n", 0, text.index(old))
    changed = text.replace(old, new)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(changed)
    gone = text.replace("\r\n", "\n").split("\n")[start : start + old.count("\n") + 1]
    come = changed.replace("\r\n", "\n").split("\n")[start : start + new.count("\n") + 1]
    print("\n".join(["-" + line for line in gone] + ["+" + line for line in come]))
    return [start + 1, len(gone), start + 1, len(come)]
---
def _bash(command):
    import subprocess
    try:
        return subprocess.run(["bash", "-c", command], cwd="/mnt/data", stdin=subprocess.DEVNULL).returncode
    except KeyboardInterrupt:
        return 130
