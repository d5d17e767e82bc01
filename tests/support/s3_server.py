"""A real S3 server for tests, moto's, and a proxy in front of it that plays outages and long ways."""
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time

try:
    import boto3
except ImportError as error:
    sys.exit(f"{error}: scripts/setup.sh --tests installs what this needs")

PATIENCE_S = 120  # longer than any wait here takes on a busy machine
BUCKET = "isthmus-test"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """moto as a process of its own, with one user and all rights; with TLS, under a certificate of its own."""

    def __init__(self, folder, tls=False):
        self.port = free_port()
        self.ca = folder / "server.crt" if tls else None
        self.url = f"https://localhost:{self.port}" if tls else f"http://127.0.0.1:{self.port}"
        words = self.certify(folder) if tls else []
        # The first requests are not authenticated: they create the user.
        environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"}
        self.log = open(folder / "server.log", "w")
        self.process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port), *words],
                                        env=environment, stdout=self.log, stderr=self.log)
        wait_for(lambda: self.process.poll() is not None or answers(self.port), "the server")
        self.key = self.create_user()
        self.credentials = folder / "credentials"
        self.write_credentials(self.credentials, self.key)
        self.s3 = self.client("s3")
        self.s3.create_bucket(Bucket=BUCKET)

    def certify(self, folder):
        key = folder / "server.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", self.ca],
                       check=True, capture_output=True)
        return ["-s", "-c", str(self.ca), "-k", str(key)]

    def client(self, service, key=None, port=None):
        """A client of Amazon's library; with the `port` of a proxy, through that."""
        key = key or getattr(self, "key", ("none", "none"))
        url = f"http://127.0.0.1:{port}" if port else self.url
        return boto3.client(service, endpoint_url=url, region_name="us-east-1", aws_access_key_id=key[0],
                            aws_secret_access_key=key[1], verify=str(self.ca) if self.ca else None)

    def create_user(self):
        iam = self.client("iam")
        iam.create_user(UserName="worker")
        everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        iam.put_user_policy(UserName="worker", PolicyName="all", PolicyDocument=json.dumps(everything))
        made = iam.create_access_key(UserName="worker")["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    @staticmethod
    def write_credentials(file, key):
        file.write_text(f"[default]\naws_access_key_id = {key[0]}\naws_secret_access_key = {key[1]}\n")

    def add_key(self):
        made = self.client("iam").create_access_key(UserName="worker")["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def remove_key(self, key):
        self.client("iam").delete_access_key(UserName="worker", AccessKeyId=key[0])

    def keys(self):
        found = []
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            found += [entry["Key"] for entry in page.get("Contents", [])]
        return sorted(found)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_for(condition, what, patience=PATIENCE_S):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {patience} s"
        time.sleep(0.1)


class Proxy:
    """Passes connections on to a port, each request after a delay in seconds; resets them while it is switched off."""

    def __init__(self, port, delay=0):
        self.target, self.on, self.resets, self.delay = port, True, 0, delay
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            if not self.on:
                self.resets += 1
                connection.close()
                continue
            threading.Thread(target=self.relay, args=(connection,), daemon=True).start()

    def relay(self, connection):
        with contextlib.suppress(OSError), connection, socket.create_connection(("127.0.0.1", self.target)) as other:
            answered = True  # the next bytes from the client begin a request
            while self.on:
                ready, _, _ = select.select([connection, other], [], [], 0.2)
                for end in ready:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is connection and answered:
                        time.sleep(self.delay)
                    answered = end is other
                    (other if end is connection else connection).sendall(data)
