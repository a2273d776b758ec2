"""What an operator is told to do about a certificate that is not trusted."""

from __future__ import annotations

import pytest

from holdfast.stores.tls_options import certificate_fix


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("certificate has expired", "renew the certificate of the server"),
        ("certificate is not yet valid", "compare the clocks"),
        ("Hostname mismatch, certificate is not valid for 'db'.", "connect by a name"),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'.", "connect by a name"),
        ("unable to get local issuer certificate", "give the CA"),
        ("self-signed certificate", "give the CA"),
    ],
)
def test_the_fix_belongs_to_the_reason(reason: str, fix: str) -> None:
    assert certificate_fix(reason, "give the CA").startswith(fix)
