"""Forms and files that FastAPI itself parses, before the claim (R17, R19)."""

from typing import Annotated

from fastapi import File, Form, UploadFile

from tests.support.asgi_client import Client, http_scope, in_loop
from tests.support.fastapi_service import Service


def multipart(boundary: bytes, name: str, content: bytes) -> tuple[bytes, bytes]:
    """Return the content type and the body of a form with a text and a file."""
    parts = (
        (b'form-data; name="title"', name.encode()),
        (b'form-data; name="scan"; filename="a.bin"', content),
    )
    body = b"".join(
        b"--%b\r\ncontent-disposition: %b\r\n\r\n%b\r\n" % (boundary, disposition, value)
        for disposition, value in parts
    )
    return b"multipart/form-data; boundary=" + boundary, body + b"--%b--\r\n" % boundary


async def send(service: Service, media: bytes, body: bytes) -> tuple[int, bytes, bool]:
    client = Client((body,))
    headers = [(b"content-type", media), (b"content-length", b"%d" % len(body)), (b"idempotency-key", b"k1")]
    await service.app(http_scope("POST", "/uploads", headers), client.receive, client.send)
    return client.answer.status, client.answer.body, client.answer.replayed


@in_loop
async def test_a_form_is_the_same_under_another_boundary_and_another_with_other_content():
    """R19: what a form says counts, not how it is cut; and the endpoint gets what its client sent."""
    async with Service() as service:

        @service.app.post("/uploads")
        @service.idempotency.operation()
        async def upload(title: Annotated[str, Form()], scan: Annotated[UploadFile, File()]) -> list[str | int]:
            return [title, len(await scan.read())]

        first = await send(service, *multipart(b"one", "a", b"\x00" * 70_000))
        again = await send(service, *multipart(b"other", "a", b"\x00" * 70_000))
        changed = await send(service, *multipart(b"one", "a", b"\x01" * 70_000))
    assert first == (200, b'["a",70000]', False)
    assert again == (200, b'["a",70000]', True)
    assert changed[0] == 422
    assert b"idempotency-key-reuse" in changed[1]
