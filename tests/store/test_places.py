"""What each store's failures mean, and that none of their words is repeated."""

import errno
import logging

import pytest

from toolkit.store.address import parse_address
from toolkit.store.places.place import Verdict
from toolkit.store.places.s3 import S3Place

WORDS = "words of the server, with a secret"


@pytest.fixture(scope="module")
def place():
    return S3Place(parse_address("s3://team/x"))


@pytest.mark.parametrize(
    ("code", "status", "verdict"),
    [
        ("NoSuchKey", 404, Verdict.MISSING),
        ("404", 404, Verdict.MISSING),
        ("NoSuchBucket", 404, Verdict.WRONG),
        ("PreconditionFailed", 412, Verdict.EXISTS),
        ("ConditionalRequestConflict", 409, Verdict.AGAIN),
        ("AccessDenied", 403, Verdict.REFUSED),
        ("InvalidAccessKeyId", 403, Verdict.REFUSED),
        ("SignatureDoesNotMatch", 403, Verdict.REFUSED),
        ("ExpiredToken", 400, Verdict.REFUSED),
        ("InternalError", 500, Verdict.AGAIN),
        ("500", 500, Verdict.AGAIN),
        ("SlowDown", 503, Verdict.AGAIN),
        ("RequestTimeout", 400, Verdict.AGAIN),
        ("BadDigest", 400, Verdict.AGAIN),
        ("InvalidBucketName", 400, Verdict.WRONG),
        ("InvalidArgument", 400, Verdict.WRONG),
        ("NotImplemented", 501, Verdict.WRONG),
        ("SomethingNewInternal", 500, Verdict.AGAIN),
    ],
)
def test_what_s3_answers(place, code, status, verdict):
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    answer = {
        "Error": {"Code": code, "Message": WORDS},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error = translate_boto_error(ClientError(answer, "PutObject"))
    assert place.verdict(error) is verdict
    assert place.code(error) == code


def test_a_code_that_is_a_sentence_is_not_repeated(place):
    from botocore.exceptions import ClientError

    error = ClientError({"Error": {"Code": WORDS, "Message": WORDS}}, "PutObject")
    assert WORDS not in place.code(error)


def test_what_keeps_s3_from_answering(place):
    from botocore import exceptions

    again = [
        exceptions.EndpointConnectionError(endpoint_url="http://secret"),
        exceptions.ReadTimeoutError(endpoint_url="http://secret"),
        exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        ConnectionResetError(errno.ECONNRESET, WORDS),
        TimeoutError(WORDS),
    ]
    wrong = [exceptions.NoCredentialsError(), exceptions.ProfileNotFound(profile="secret")]
    assert {place.verdict(error) for error in again} == {Verdict.AGAIN}
    assert {place.verdict(error) for error in wrong} == {Verdict.WRONG}
    assert not any("secret" in place.code(error) for error in (*again, *wrong))
    assert [place.unreachable(error) for error in again] == [True, False, False, False, False]


def test_libraries_that_might_log_a_key_are_silent(place, caplog):
    for name in ("s3fs", "botocore.auth", "aiobotocore.endpoint"):
        logging.getLogger(name).critical(WORDS)
    assert WORDS not in caplog.text


def test_what_gs_answers():
    pytest.importorskip("gcsfs", reason="needs spectool[gs]")
    from gcsfs.retry import HttpError

    from toolkit.store.places.gs import GsPlace

    place = GsPlace(parse_address("gs://team/x"))
    verdicts = {
        400: Verdict.WRONG, 401: Verdict.REFUSED, 403: Verdict.REFUSED, 404: Verdict.MISSING,
        408: Verdict.AGAIN, 412: Verdict.EXISTS, 429: Verdict.AGAIN, 500: Verdict.AGAIN,
        503: Verdict.AGAIN,
    }  # fmt: skip
    for status, verdict in verdicts.items():
        error = HttpError({"code": status, "message": WORDS})
        assert place.verdict(error) is verdict
        assert place.code(error) == f"HTTP {status}"
    assert place.verdict(ValueError(WORDS)) is Verdict.WRONG
    assert place.verdict(FileNotFoundError(WORDS)) is Verdict.MISSING
    assert place.verdict(ConnectionResetError()) is Verdict.AGAIN
