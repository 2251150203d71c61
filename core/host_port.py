"""Addresses as `host:port`, where an IPv6 host stands in brackets."""


def join_host_port(host: str, port: int) -> str:
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
