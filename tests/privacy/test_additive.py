"""Additive ciphers: one interface, exact sums, and nothing else for whoever decrypts."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

from solera.core.errors import PayloadError, UsageError
from solera.privacy import additive
from solera.privacy.additive import Form, ckks
from solera.privacy.he.packing import extract
from solera.privacy.he.ring import ring

CIPHERS = ["ckks", "paillier-2048", "plain"]


@cache
def pair(cipher: str) -> additive.SecretKey:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", additive.WeakCipher)
        return additive.generate(cipher, b"only for tests" * 3)  # type: ignore[arg-type]


def sums(secret, values, matrix, form, *, masked=False):
    public = secret.public
    encrypted = secret.encrypt(values, form)
    products = public.multiply(encrypted, public.prepare(matrix, form), form, masked=masked)
    columns = matrix.shape[1]
    residues = secret.decrypt(products.blocks, form, columns)
    return public.unmask(residues, products.masks, form, columns)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("vectors", "rows", "columns"), [(1, 1, 1), (2, 60, 5), (3, 41, 12)])
def test_sums_are_exact(cipher, masked, vectors, rows, columns):
    rng = np.random.default_rng(rows)
    values = rng.integers(-(2**25), 2**25, (vectors, rows))
    matrix = rng.integers(-500, 500, (rows, columns))
    secret = pair(cipher)
    form = secret.public.form(vectors=vectors, rows=rows, columns=columns, sum_bits=42)
    np.testing.assert_array_equal(
        sums(secret, values, matrix, form, masked=masked), values @ matrix
    )


def test_sums_at_the_bound_of_many_blocks_are_exact():
    rng = np.random.default_rng(0)
    rows = 20_000
    values = rng.integers(-(2**29), 2**29, (2, rows))
    matrix = (rng.random((rows, 9)) < 0.5).astype(np.int8)
    matrix[:, 0], matrix[:, 1] = 0, 1
    secret = pair("ckks")
    form = secret.public.form(vectors=2, rows=rows, columns=9, sum_bits=44)
    assert form.blocks > 1
    np.testing.assert_array_equal(sums(secret, values, matrix, form), values @ matrix.astype(int))


@pytest.mark.parametrize("cipher", CIPHERS)
def test_encrypted_vectors_add_up(cipher):
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-1000, 1000, (2, 30)) for _ in range(3))
    matrix = rng.integers(-9, 9, (30, 4))
    secret = pair(cipher)
    public = secret.public
    form = public.form(vectors=2, rows=30, columns=4, sum_bits=30)
    total = public.add([public.encrypt(part, form) for part in (a, b, c)], form)
    products = public.multiply(total, public.prepare(matrix, form), form, masked=True)
    residues = secret.decrypt(products.blocks, form, 4)
    np.testing.assert_array_equal(
        public.unmask(residues, products.masks, form, 4), (a + b + c) @ matrix
    )


@pytest.mark.parametrize("cipher", CIPHERS)
def test_keys_survive_their_bytes_and_follow_from_a_seed(cipher):
    secret = pair(cipher)
    again = additive.read_secret(cipher, secret.to_bytes())
    assert again.to_bytes() == secret.to_bytes()
    public = additive.read_public(cipher, secret.public.to_bytes())
    values, matrix = np.array([[3, -4]]), np.array([[1], [2]])
    form = public.form(vectors=1, rows=2, columns=1, sum_bits=20)
    encrypted = public.encrypt(values, form)
    products = public.multiply(encrypted, public.prepare(matrix, form), form, masked=False)
    assert public.unmask(again.decrypt(products.blocks, form, 1), None, form, 1) == -5
    if cipher != "plain":
        assert pair.__wrapped__(cipher).to_bytes() == secret.to_bytes()
        assert public.encrypt(values, form) != encrypted


def test_paillier_has_3072_bits_unless_told_loudly():
    with pytest.warns(additive.WeakCipher, match="112 bits"):
        weak = additive.generate("paillier-2048", b"seed")
    with pytest.raises(PayloadError, match="2048 bits is too short"):
        additive.read_public("paillier", weak.public.to_bytes())
    strong = additive.generate("paillier", b"seed")
    assert strong.public.security == 128
    assert additive.read_public("paillier", strong.public.to_bytes()).security == 128
    assert pair("ckks").public.security >= 128


def test_products_tell_the_key_holder_nothing_but_sums():
    """All other coefficients are uniform, and the second polynomial is not the matrix's."""
    secret = pair("ckks")
    assert isinstance(secret, ckks.CkksSecret)
    rows, columns = 200, 3
    matrix = np.zeros((rows, columns), np.int8)
    matrix[:5] = 1
    form = Form(2, rows, 40, 1024)
    public = secret.public
    encrypted = secret.encrypt(np.ones((2, rows), int), form)
    prepared = public.prepare(matrix, form)
    one, two = (public.multiply(encrypted, prepared, form, masked=False) for _ in range(2))
    assert one.blocks != two.blocks
    here = ring(ckks.PARAMETERS)
    scale = 2.0**78 / here.primes[1]
    found = extract(secret.key.decrypt_block(here.load("Ciphertext", one.blocks[0]))) * scale
    useful = np.zeros(len(found), bool)
    useful[ckks._useful(form, columns)] = True
    assert (np.rint(found[useful] / scale) == 5).all()
    shares, _ = np.histogram(found[~useful] / here.primes[0], bins=8, range=(-0.5, 0.5))
    assert (abs(shares / shares.sum() - 1 / 8) < 0.02).all()


def second_polynomial(ciphertext):
    """The first number, of 60 bits, of c₁; of c₁·p, a product would give p away."""
    return ciphertext.data(1)


def test_products_are_covered_by_a_new_encryption_of_zero(monkeypatch):
    """Whoever sent c₁ could divide c₁·p by it, or try which p it is."""
    secret = pair("ckks")
    public = secret.public
    form = Form(1, 50, 40, 1024)
    matrix = np.arange(50)[:, None] % 3
    encrypted = secret.encrypt(np.ones((1, 50), int), form)
    prepared = public.prepare(matrix, form)
    here = ring(ckks.PARAMETERS)

    nothing = here.encode(np.zeros(4096), here.place("flat", 0)[0], 2.0**78)
    known = ckks.dump(public.key.encrypt(nothing))

    def guessed():
        product = ckks.seal().Ciphertext()
        sent = here.load("Ciphertext", encrypted[0])
        here.evaluator.multiply_plain(sent, prepared.plaintext(0, 0), product)
        here.evaluator.add_inplace(product, here.load("Ciphertext", known))
        here.evaluator.rescale_to_next_inplace(product)
        return second_polynomial(product)

    def told():
        products = public.multiply(encrypted, prepared, form, masked=False)
        return second_polynomial(here.load("Ciphertext", products.blocks[0]))

    assert len({guessed(), told(), told()}) == 3
    cover = lambda *_: here.load("Ciphertext", known)  # noqa: E731
    monkeypatch.setattr(type(public.key), "encrypt", cover)
    assert guessed() == told()  # whoever knows what it is covered by sees the matrix


def test_masked_products_tell_the_key_holder_nothing_at_all():
    for cipher in ("ckks", "paillier-2048"):
        secret = pair(cipher)
        public = secret.public
        form = public.form(vectors=1, rows=2, columns=1, sum_bits=20)
        encrypted = public.encrypt(np.array([[1, 2]]), form)
        prepared = public.prepare(np.array([[3], [4]]), form)
        seen = set()
        for _ in range(8):
            products = public.multiply(encrypted, prepared, form, masked=True)
            residue = secret.decrypt(products.blocks, form, 1)
            number = int.from_bytes(residue[0], "little")
            if cipher == "ckks":
                number = int(np.frombuffer(residue[0])[0])
            assert abs(number) > 2**40
            seen.add(number)
            assert public.unmask(residue, products.masks, form, 1) == 11
        assert len(seen) == 8


def test_what_does_not_fit_is_named():
    secret = pair("ckks")
    public = secret.public
    form = public.form(vectors=1, rows=3, columns=1, sum_bits=20)
    with pytest.raises(UsageError, match=r"not 1 vectors of 3"):
        public.encrypt(np.zeros((1, 4), int), form)
    with pytest.raises(UsageError, match="reach 2\\^20"):
        public.encrypt(np.full((1, 3), 2**20), form)
    with pytest.raises(UsageError, match="no matrix of whole numbers"):
        public.prepare(np.zeros((3, 1)), form)
    with pytest.raises(UsageError, match="60 bits"):
        public.form(vectors=1, rows=3, columns=1, sum_bits=60)
    with pytest.raises(PayloadError, match="ciphertexts are not those"):
        public.multiply([], public.prepare(np.zeros((3, 1), int), form), form, masked=False)
    with pytest.raises(PayloadError):
        Form.from_list([1, 2, 0, 1])
    encrypted = public.encrypt(np.zeros((1, 3), int), form)
    with pytest.raises(PayloadError, match="damaged"):
        public.add([encrypted, [encrypted[0][:-9]]], form)
    with pytest.raises(PayloadError, match="damaged"):
        secret.decrypt(encrypted, form, 1)


@pytest.mark.parametrize("cipher", ["ckks", "paillier-2048"])
def test_damaged_keys_are_refused(cipher):
    data = pair(cipher).public.to_bytes()
    with pytest.raises(PayloadError):
        additive.read_public(cipher, data[:-40])
    other = "paillier" if cipher == "ckks" else "ckks"
    with pytest.raises(PayloadError):
        additive.read_public(other, data)
