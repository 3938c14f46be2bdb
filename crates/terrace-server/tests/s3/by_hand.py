"""Requests sent by hand: signed by botocore, so that headers can be missing, empty or wrong afterwards."""

import http.client
import re

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials


def code_of(text):
    code = re.search(rb"<Code>([^<]*)", text)
    return code.group(1).decode() if code else None


def sender(endpoint, *default_keys):
    """What sends to `endpoint`, signed with these keys unless others are given."""
    endpoint = endpoint.rstrip("/")
    host = endpoint.split("//")[1]

    def send(method, path, headers={}, content=b"", signed=True, then={}, without=(), keys=default_keys):
        """Sends what is signed with `headers`, with those `then` set and those `without` removed after that. Gives status,
        code, headers and body."""
        request = AWSRequest(method=method, url=f"{endpoint}{path}", data=content, headers=dict(headers))
        if signed:
            request.context["payload_signing_enabled"] = True
            S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(request)
        lines = {name.lower(): value for name, value in request.headers.items()}
        if method in ("PUT", "POST"):
            lines.setdefault("content-length", str(len(content)))
        lines.update(then)
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in lines.items():
            if name not in without and name != "host":
                connection.putheader(name, value)
        connection.endheaders(content if content else None)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, code_of(text), answer.headers, text

    return send
