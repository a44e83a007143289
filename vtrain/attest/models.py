"""A folder of exported weights in a bundle of OpenSSF's model signing (extra ``signing``).

The bundle is what that library writes: a sigstore bundle whose payload is an in-toto statement of
the SHA-256 of every file of the folder.  Its own verifier checks it, and knows nothing of vtrain.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vtrain.commit.files import read_file
from vtrain.errors import MissingExtraError, SignatureError, StorageError
from vtrain.limits import LIMITS


def require_model_signing() -> None:
    """MissingExtraError unless the extra ``signing`` is installed."""
    if find_spec("model_signing") is None:
        raise MissingExtraError('needs it: pip install "vtrain[signing]"', where="model_signing")


def sign_model(folder: Path, key: Path, out: Path) -> None:
    """Sign all files of ``folder`` with the private key in the PEM file ``key``, of an elliptic
    curve as that library takes them (P-256, P-384, P-521), and write the bundle ``out``.

    ``out`` may lie in the folder: it is no file of the model.  MissingExtraError; SignatureError
    for a key that is none, StorageError where a file cannot be read or written.
    """
    require_model_signing()
    check_model_key(key)
    from model_signing import hashing, signing

    try:
        plain = hashing.Config()  # type: ignore[no-untyped-call]
        hashed = plain.set_ignored_paths(paths=[out], ignore_git_paths=False)
        config = signing.Config().set_hashing_config(hashed)  # type: ignore[no-untyped-call]
        config.use_elliptic_key_signer(private_key=key).sign(folder, out)
    except ValueError as error:
        raise SignatureError(f"cannot sign: {error}", where=str(key)) from None
    except OSError as error:
        raise StorageError(f"cannot be signed: {error.strerror}", where=str(folder)) from None


def check_model_key(key: Path) -> None:
    """SignatureError unless ``key`` is a file with a private key that signs bundles."""
    try:
        pem = read_file(key, LIMITS.key_bytes, error=StorageError)
        found = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise SignatureError(
            "is no private key in PEM without a password", where=str(key)
        ) from None
    if not isinstance(found, EllipticCurvePrivateKey):
        raise SignatureError(
            "is no key of an elliptic curve that model signing takes, as openssl makes one: "
            "openssl ecparam -name prime256v1 -genkey -noout -out FILE",
            where=str(key),
        )
