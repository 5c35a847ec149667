"""
title: Files for Aludel
description: Hands the files of a chat to the model's code interpreter as they are, instead of their text.
"""

import base64
import inspect
from pathlib import Path

from open_webui.models.files import Files
from open_webui.storage.provider import Storage

# Bytes of a file that is handed on; of a larger one, Open WebUI takes the text.
MAX_BYTES = 32 << 20


class Filter:
    async def inlet(self, body, __metadata__=None):
        asked = [message for message in body.get("messages", []) if message.get("role") == "user"]
        message = (__metadata__ or {}).get("user_message") or {}
        newest = {item.get("id") for item in message.get("files") or []}
        others = []
        for item in body.get("files") or []:
            part = await part_of(item) if asked else None
            if part is None:
                others.append(item)
                continue
            # A file of an earlier question is in the container already, where a program may have changed it.
            message = asked[-1] if item.get("id") in newest else asked[0]
            content = message.get("content") or ""
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            message["content"] = content + [part]
        body["files"] = others
        return body


async def part_of(item):
    """The part of a message that has this file, or nothing for what is no file, such as a collection."""
    if item.get("type") != "file" or not item.get("id"):
        return None
    found = Files.get_file_by_id(item["id"])
    found = await found if inspect.isawaitable(found) else found
    if not found or not found.path:
        return None
    path = Path(Storage.get_file(found.path))
    if path.stat().st_size > MAX_BYTES:
        return None
    kind = (found.meta or {}).get("content_type") or "application/octet-stream"
    data = base64.b64encode(path.read_bytes()).decode()
    return {"type": "file", "file": {"filename": found.filename, "file_data": f"data:{kind};base64,{data}"}}
